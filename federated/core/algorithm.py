"""An algorithm as a record of pure functions, as in FedJAX (Ro et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from .state import Array, Roles, State
from .sums.partial import Partial

ServerState = Mapping[str, Array]
"""float64 tensors that an algorithm keeps between rounds (momenta); part of every checkpoint."""


class Needs(StrEnum):
    """What the coordinator needs from a round's updates."""

    SUM = "sum"
    """Their weighted sum: memory for one model, however many clients."""
    EVERY_UPDATE = "every_update"
    """Each update: memory for one model per client of a round."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How a round's updates become one update, and how it changes the global model."""

    name: str
    init: Callable[[State], ServerState]
    """(initial model) -> the server's first memory."""
    apply: Callable[[State, Roles, ServerState, State], tuple[dict[str, Array], ServerState]]
    """(model, roles, memory, float64 mean update) -> (next model, next memory)."""
    needs: Needs = Needs.SUM
    combine: Callable[[Partial], dict[str, Array]] = Partial.mean
    """(the round's merged Partial) -> the float64 update of each averaged tensor."""
