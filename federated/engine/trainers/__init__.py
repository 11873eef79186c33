"""Ways to train the clients of a chunk: one by one, or all at once; each is checked before it is
used.
"""
