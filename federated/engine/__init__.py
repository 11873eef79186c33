"""How a worker computes: local training, evaluation, and the journal of what is done."""
