"""Admits virtual clusters, takes places and loans back, replaces what was lost, and tells what waits."""
