"""FedAvg: the next model is the mean of the clients' models, weighted by samples.

McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data".
With a server learning rate other than 1 it is FedSGD's generalisation of Reddi et al. 2021.
"""

from __future__ import annotations

from ..core.algorithm import Algorithm
from .server_step import ServerOptimizer, with_optimizer


def fedavg(server_learning_rate: float = 1.0) -> Algorithm:
    """FedAvg; `server_learning_rate` scales the mean update of the trained tensors."""
    optimizer = ServerOptimizer(lambda update, kept: (server_learning_rate * update, kept))
    return with_optimizer("fedavg", optimizer)
