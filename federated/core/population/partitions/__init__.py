"""Decide which samples each client holds, and what clients are called.

The rules of all kinds:

* a partition is a function of (labels, recipe, seed): whoever computes it gets the same one;
* what it says of many clients at once is what it says of each alone.
"""
