"""Exact sums of trained tensors, computed where the tensors are."""
