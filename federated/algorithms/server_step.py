"""How the server moves the model along a round's mean update, and what it keeps to do so.

Statistic buffers get their mean, whatever the optimizer: they are measured and not trained. All
arithmetic is in float64, in one thread, and element by element, so that its bits depend on no
machine. The new model is rounded once, to its own type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ..core.algorithm import Algorithm, ServerState
from ..core.state import Array, Roles, State, TensorRole

Kept = Mapping[str, Array]
"""What an optimizer keeps of one tensor, by name, such as `momentum`; float64, in its shape."""


@dataclass(frozen=True, slots=True)
class ServerOptimizer:
    """Turns the mean update of a trained tensor into the step that the tensor makes."""

    step: Callable[[Array, Kept], tuple[Array, Kept]]
    """(float64 mean update, what is kept) -> (step, what is kept now)."""
    start: Mapping[str, float] = field(default_factory=dict)
    """What is kept, by name, and its value before a tensor's first step."""


def stepped(
    model: State, roles: Roles, memory: ServerState, mean: State, optimizer: ServerOptimizer
) -> tuple[dict[str, Array], ServerState]:
    """The next model and the next memory, whose names are `momentum/TENSOR` and the like."""
    new, after = dict(model), dict(memory)
    for name, update in mean.items():
        step = update
        if roles[name] is TensorRole.TRAINED:
            places = {kept: f"{kept}/{name}" for kept in optimizer.start}
            before = {
                kept: memory[place] if place in memory else np.full(update.shape, first)
                for (kept, place), first in zip(
                    places.items(), optimizer.start.values(), strict=True
                )
            }
            step, now = optimizer.step(update, before)
            after |= {places[kept]: np.asarray(array) for kept, array in now.items()}
        moved = model[name].astype("float64") + step
        new[name] = np.asarray(moved, dtype=model[name].dtype)
    return new, after


def with_optimizer(name: str, optimizer: ServerOptimizer) -> Algorithm:
    """The algorithm that steps along the mean of the clients' updates; its memory begins empty."""
    return Algorithm(name, lambda _model: {}, partial(stepped, optimizer=optimizer))
