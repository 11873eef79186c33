"""What a site asks of its workers in a round, and what they answer: an attempt, and its pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.execution.facts import Execution
from ...core.population.sampling import Indices
from ...core.state import State
from ...core.sums.partial import Partial
from ..states.layouts import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt at one round, to which a worker's sum belongs."""

    number: int
    """Distinguishes attempts of one site."""
    round_number: int
    exponents: Mapping[str, int]
    execution: Execution
    digests: bool = False
    """Whether the answer has digests of every client's tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceResult:
    """A worker's answer to a piece of a round."""

    partial: Partial | None
    """The worker's sum so far, if requested; the worker then begins a new one."""
    covered: Indices
    """The clients, or groups, in that sum."""
    clients: int = 0
    """Clients trained for this answer."""
    samples: int = 0
    seconds: float = 0.0
    training_seconds: float = 0.0
    """Of that, the time in training arithmetic."""
    memories: Mapping[int, State] = field(default_factory=dict)
    """What clients keep for their next training."""
    digests: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    printed: Mapping[str, str] = field(default_factory=dict)
    """Output of the user's training code, by client id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesJudged:
    """A worker's answer about how good clients' own models are, in the order asked for."""

    correct: npt.NDArray[np.int64]
    """(k,): samples classified right."""
    samples: npt.NDArray[np.int64]
    """(k,)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesTrained:
    """A worker's answer about clients that have models of their own."""

    states: Stack | None
    """What the clients became, in the order asked for; None if it is in the memory lent for it."""
    sizes: Mapping[str, npt.NDArray[np.float64]]
    """By name each client's largest move from the run's model, (k,); not finite where it is not."""
    losses: npt.NDArray[np.float64]
    """Sums of their samples' losses in the last epoch, (k,)."""
    samples: int
    seconds: float
    training_seconds: float


def is_same_code(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Whether two workers' arguments, settings first, have the same code of the user's."""
    was, now = before[0], after[0]
    return bool(was.code == now.code and was.carried == now.carried)
