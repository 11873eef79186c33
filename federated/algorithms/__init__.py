"""What a round does with updates, and the clients' learning rate in it: one paper per file."""

from ..config.schema import FederationConfig
from ..core.algorithm import Algorithm
from .adaptive import fedadagrad, fedadam, fedyogi
from .coordinatewise import median, trimmed_mean
from .fedavg import fedavg
from .fedavgm import fedavgm
from .geometric_median import geometric_median
from .krum import krum, multi_krum
from .schedules import learning_rate

__all__ = [
    "algorithm_of",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavgm",
    "fedyogi",
    "geometric_median",
    "krum",
    "learning_rate",
    "median",
    "multi_krum",
    "trimmed_mean",
]


def algorithm_of(section: FederationConfig) -> Algorithm:
    """The algorithm that a config names."""
    rate, betas, tau = section.server_learning_rate, section.betas, section.tau
    match section.aggregation_strategy:
        case (
            "fedavg" | "dpsgd" | "gossip" | "push_sum"
        ):  # on a graph: the mean of the nodes' models
            return fedavg(rate)
        case "fedavgm":
            return fedavgm(rate, section.momentum)
        case "fedadagrad":
            return fedadagrad(rate, betas[0], tau)
        case "fedyogi":
            return fedyogi(rate, betas, tau)
        case "fedadam":
            corrected = bool(section.server_bias_correction)
            return fedadam(rate, betas, tau, bias_correction=corrected)
        case "krum":
            return krum(section.byzantine_clients or 0, rate)
        case "multi_krum":
            return multi_krum(section.byzantine_clients or 0, section.krum_keeps, rate)
        case "geometric_median":
            return geometric_median(rate)
        case "median":
            return median(rate)
        case "trimmed_mean":
            return trimmed_mean(section.trim or 0.0, rate)
