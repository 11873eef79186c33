"""Unmodified Ray scripts as jobs, each in a virtual cluster of its own."""
