"""FedAdagrad, FedYogi and FedAdam: each number of the model has a step size of its own.

Reddi et al. 2021, "Adaptive federated optimization", Algorithm 2, for the mean update D of round t:

    m_t = b1 m_{t-1} + (1 - b1) D        from m_{-1} = 0
    v_t = v_{t-1} + D^2                                         FedAdagrad
    v_t = v_{t-1} - (1 - b2) D^2 sign(v_{t-1} - D^2)            FedYogi
    v_t = b2 v_{t-1} + (1 - b2) D^2                             FedAdam
    model <- model + server_learning_rate x m_t / (sqrt(v_t) + tau)

v_{-1} is tau^2, the least that the paper admits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..core.algorithm import Algorithm, ServerState
from ..core.state import Array, Roles, State
from .server_step import Kept, ServerOptimizer, stepped, with_optimizer

Second = Callable[[Array, Array], Array]
"""(v before, squared mean update) -> v."""
USUAL_BETAS, USUAL_TAU = (0.9, 0.99), 1e-3
"""Those of the paper's experiments with FedAdam and FedYogi."""
DECAYS = "decays"
"""In the server's memory: b1^t and b2^t, for the correction of the bias."""


def fedadagrad(
    server_learning_rate: float, beta: float = USUAL_BETAS[0], tau: float = USUAL_TAU
) -> Algorithm:
    """FedAdagrad: squares add up over all rounds, so that steps become smaller and smaller."""

    def second(before: Array, square: Array) -> Array:
        return np.asarray(before + square)

    return _algorithm("fedadagrad", second, server_learning_rate, beta, tau)


def fedyogi(
    server_learning_rate: float,
    betas: tuple[float, float] = USUAL_BETAS,
    tau: float = USUAL_TAU,
) -> Algorithm:
    """FedYogi: v moves by at most (1 - b2) of an update's square, up or down."""
    beta, other = betas

    def second(before: Array, square: Array) -> Array:
        return np.asarray(before - (1 - other) * square * np.sign(before - square))

    return _algorithm("fedyogi", second, server_learning_rate, beta, tau)


def fedadam(
    server_learning_rate: float,
    betas: tuple[float, float] = USUAL_BETAS,
    tau: float = USUAL_TAU,
    *,
    bias_correction: bool = False,
) -> Algorithm:
    """FedAdam: v is a moving mean of squares.

    With `bias_correction` it is the Adam of Kingma and Ba 2015 and of PyTorch, with tau as epsilon:
    v begins at 0, and both moments are divided by the weight that their rounds have by then.
    """
    beta, other = betas

    def second(before: Array, square: Array) -> Array:
        return np.asarray(other * before + (1 - other) * square)

    if not bias_correction:
        return _algorithm("fedadam", second, server_learning_rate, beta, tau)

    def apply(
        model: State, roles: Roles, memory: ServerState, mean: State
    ) -> tuple[dict[str, Array], ServerState]:
        # Multiplied round by round: a library's power may differ in its last bit.
        decays = memory.get(DECAYS, np.ones(2)) * np.array(betas)
        weights = (1 - float(decays[0]), 1 - float(decays[1]))
        optimizer = _optimizer(second, server_learning_rate, beta, tau, 0.0, weights)
        return stepped(model, roles, {**memory, DECAYS: decays}, mean, optimizer)

    return Algorithm("fedadam", lambda _model: {}, apply)


def _algorithm(name: str, second: Second, rate: float, beta: float, tau: float) -> Algorithm:
    return with_optimizer(name, _optimizer(second, rate, beta, tau, tau * tau))


def _optimizer(
    second: Second,
    rate: float,
    beta: float,
    tau: float,
    start: float,
    weights: tuple[float, float] = (1.0, 1.0),
) -> ServerOptimizer:
    """`weights`: what the moments are divided by."""

    def step(update: Array, kept: Kept) -> tuple[Array, Kept]:
        first = beta * kept["first_moment"] + (1 - beta) * update
        square = second(kept["second_moment"], update * update)
        moved = rate * (first / weights[0]) / (np.sqrt(square / weights[1]) + tau)
        return moved, {"first_moment": first, "second_moment": square}

    return ServerOptimizer(step, {"first_moment": 0.0, "second_moment": start})
