"""Decides where virtual clusters get their places: admission, machines, loans, placement groups."""
