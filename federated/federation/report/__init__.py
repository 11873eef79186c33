"""Presents a run to people: progress on the screen, events as JSON, curves, TensorBoard files."""
