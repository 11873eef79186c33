"""Decide how updates of clients become one: exact sums, and what of them is refused."""
