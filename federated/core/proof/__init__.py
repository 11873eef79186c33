"""Decide whether a recorded run is what it says, and where two runs differ."""
