"""How a round's updates become the next global model: one paper per file."""

from .choosing import algorithm_of
from .coordinatewise import median, trimmed_mean
from .fedavg import fedavg

__all__ = ["algorithm_of", "fedavg", "median", "trimmed_mean"]
