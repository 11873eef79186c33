"""FedAvgM: the server keeps moving in the direction of earlier rounds.

Hsu et al. 2019, "Measuring the effects of non-identical data distribution for federated visual
classification": v <- momentum x v + update, model <- model + server_learning_rate x v. Without
momentum it is FedAvg. In the long run the model moves by 1 / (1 - momentum) times an update.
"""

from __future__ import annotations

from ..core.algorithm import Algorithm
from ..core.state import Array
from .server_step import Kept, ServerOptimizer, with_optimizer


def fedavgm(server_learning_rate: float = 1.0, momentum: float = 0.9) -> Algorithm:
    """FedAvgM; `momentum` is the share of the last step's direction that stays, in [0, 1)."""

    def step(update: Array, kept: Kept) -> tuple[Array, Kept]:
        velocity = momentum * kept["momentum"] + update
        return server_learning_rate * velocity, {"momentum": velocity}

    return with_optimizer("fedavgm", ServerOptimizer(step, {"momentum": 0.0}))
