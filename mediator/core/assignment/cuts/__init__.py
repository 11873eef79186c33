"""Cuts of graphs of clients into parts, one for each site: by edges, or by a round's seconds. Pure.

A strategy says how large parts may be, and chooses among the ways of this room.
"""
