"""What a site asks of its workers in a round, and what they answer: an attempt, and its pieces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...core.execution.facts import Execution
from ...core.population.sampling import Indices
from ...core.state import State
from ...core.sums.partial import Partial


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt at one round: what a worker's sum belongs to."""

    number: int
    """Tells attempts of one site apart."""
    round_number: int
    exponents: Mapping[str, int]
    """The grid that updates are summed on."""
    execution: Execution
    digests: bool = False
    """Whether the answer names every client's tensors by their digests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceResult:
    """What a worker says of a piece of a round."""

    partial: Partial | None
    """The worker's sum so far, if it was asked for; the worker begins a new one then."""
    covered: Indices
    """The clients, or groups, in that sum."""
    clients: int = 0
    """Clients that were trained for this answer."""
    samples: int = 0
    seconds: float = 0.0
    training_seconds: float = 0.0
    """What of that the arithmetic of training took."""
    memories: Mapping[int, State] = field(default_factory=dict)
    """What clients want to find again the next time."""
    digests: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By client id and tensor, if they were asked for."""
    printed: Mapping[str, str] = field(default_factory=dict)
    """What a user's own way of training printed, by client id."""
