"""Checks a recorded run against itself, and finds where two runs differ."""
