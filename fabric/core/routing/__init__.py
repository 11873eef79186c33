"""Decides where tasks and actors inside a virtual cluster run, and which of them wait."""
