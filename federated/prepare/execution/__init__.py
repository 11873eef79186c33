"""Chooses how a run computes a chunk, measures what suits this machine, and compiles it early."""
