"""Computes at a worker: local training, evaluation, and the journal of finished work."""
