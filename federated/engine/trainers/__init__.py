"""Trains the clients of a chunk, one by one or all at once; each trainer is checked before use."""
