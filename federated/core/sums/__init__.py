"""Decide how clients' updates become one: exact sums, and which updates are refused."""
