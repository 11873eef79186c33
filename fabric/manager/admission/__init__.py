"""Admits virtual clusters, takes back places and loans, replaces lost nodes, tells what waits."""
