"""Decide what is a user's own code: the archive that it travels in, and where in it an error came
from.
"""
