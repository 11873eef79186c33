"""Decides which samples each client holds, and the clients' ids.

A partition is a function of (labels, recipe, seed), whether asked about one client or many.
"""
