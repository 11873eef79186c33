"""What an algorithm is: a record of two pure functions, as in FedJAX (Ro et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .state import Array, Roles, State

ServerState = Mapping[str, Array]
"""float64 tensors that an algorithm keeps between rounds (momenta); part of every checkpoint."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How a round's mean update is applied to the global model."""

    name: str
    init: Callable[[State], ServerState]
    """(initial model) -> what the server remembers at first."""
    apply: Callable[[State, Roles, ServerState, State], tuple[dict[str, Array], ServerState]]
    """(model, roles, memory, float64 mean update) -> (next model, next memory)."""
