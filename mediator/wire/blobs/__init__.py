"""Files named by the SHA-256 of their bytes: the store, what is kept in it, and what a full disk
means.
"""
