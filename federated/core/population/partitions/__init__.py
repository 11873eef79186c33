"""Decides which samples each client holds, and the clients' ids.

A partition is a function of (labels, recipe, seed). Asking it about many clients at once gives the
same answers as asking about each alone.
"""
