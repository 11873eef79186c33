"""Decide where tasks and actors inside a virtual cluster run, and who waits."""
