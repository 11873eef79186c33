"""What an algorithm is: a record of pure functions, as in FedJAX (Ro et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from .state import Array, Roles, State
from .sums.partial import Partial

ServerState = Mapping[str, Array]
"""float64 tensors that an algorithm keeps between rounds (momenta); part of every checkpoint."""


class Needs(StrEnum):
    """What of a round's updates must reach the coordinator."""

    SUM = "sum"
    """Their weighted sum: the memory of one model, however many clients."""
    EVERY_UPDATE = "every_update"
    """Each of them: as many models as a round has clients."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How a round's updates become one, and how that is applied to the global model."""

    name: str
    init: Callable[[State], ServerState]
    """(initial model) -> what the server remembers at first."""
    apply: Callable[[State, Roles, ServerState, State], tuple[dict[str, Array], ServerState]]
    """(model, roles, memory, float64 mean update) -> (next model, next memory)."""
    needs: Needs = Needs.SUM
    combine: Callable[[Partial], dict[str, Array]] = Partial.mean
    """(all that came of a round) -> the float64 update of each averaged tensor."""
