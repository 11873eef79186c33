"""FedAvg: the next model is the mean of the clients' models, weighted by samples.

McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data".
With a server learning rate other than 1 it is FedSGD's generalisation of Reddi et al. 2021.
"""

from __future__ import annotations

import numpy as np

from ..core.algorithm import Algorithm, ServerState
from ..core.state import Array, Roles, State, TensorRole


def fedavg(server_learning_rate: float = 1.0) -> Algorithm:
    """FedAvg; `server_learning_rate` scales the mean update of the trained tensors."""

    def apply(
        model: State, roles: Roles, memory: ServerState, mean: State
    ) -> tuple[dict[str, Array], ServerState]:
        new = dict(model)
        for name, update in mean.items():
            step = server_learning_rate if roles[name] is TensorRole.TRAINED else 1.0
            moved = model[name].astype("float64") + step * update
            new[name] = np.asarray(moved, dtype=model[name].dtype)
        return new, memory

    return Algorithm("fedavg", lambda _model: {}, apply)
