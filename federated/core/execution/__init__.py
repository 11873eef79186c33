"""Decide how a chunk of clients is computed, from a model's structure and a table of costs."""
