"""Decides which samples each client holds, and the clients' ids.

A partition is a function of (labels, recipe, seed). A question about many clients gets the same
answers as one question per client.
"""
