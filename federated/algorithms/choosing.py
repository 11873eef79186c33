"""Which algorithm a configuration names."""

from __future__ import annotations

from ..config.schema import FederationConfig
from ..core.algorithm import Algorithm
from .coordinatewise import median, trimmed_mean
from .fedavg import fedavg


def algorithm_of(section: FederationConfig) -> Algorithm:
    rate = section.server_learning_rate
    match section.aggregation_strategy:
        case "fedavg":
            return fedavg(rate)
        case "median":
            return median(rate)
        case "trimmed_mean":
            return trimmed_mean(section.trim or 0.0, rate)
