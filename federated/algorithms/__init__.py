"""The algorithms that turn a round's updates into the next global model: one paper per file."""

from ..config.schema import FederationConfig
from ..core.algorithm import Algorithm
from .coordinatewise import median, trimmed_mean
from .fedavg import fedavg

__all__ = ["algorithm_of", "fedavg", "median", "trimmed_mean"]


def algorithm_of(section: FederationConfig) -> Algorithm:
    """The algorithm that a config names."""
    rate = section.server_learning_rate
    match section.aggregation_strategy:
        case (
            "fedavg" | "dpsgd" | "gossip" | "push_sum"
        ):  # on a graph: the mean of the nodes' models
            return fedavg(rate)
        case "median":
            return median(rate)
        case "trimmed_mean":
            return trimmed_mean(section.trim or 0.0, rate)
