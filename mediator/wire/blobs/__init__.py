"""Files named by the SHA-256 of their bytes: the store, the parts on their way into it, what is
kept there, and what a full disk means.
"""
