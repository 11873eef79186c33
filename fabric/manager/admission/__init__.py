"""Admits virtual clusters, takes their places back, and replaces what they lost."""
