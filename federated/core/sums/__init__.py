"""Combine clients' updates by exact sums, and decide which updates are refused."""
