"""How a chunk is computed, and why: client by client, or several at once.

The choice is part of a run's identity, since it decides the last bits. It is made once, from one
short trial, and then written down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

WORTH = 1.15
"""How many times faster several at once must be: less is noise."""
LARGEST = {"cpu": 64, "cuda": 1024}
"""Clients that train at once at most; beyond it, more are no faster."""
MEMORY_SHARE = 0.25
"""Part of a vnode's memory that a chunk's weights, gradients and activations may take."""


class Kind(StrEnum):
    """A way of computing a chunk."""

    SEQUENTIAL = "sequential"
    """One client after another."""
    FOLDED = "folded"
    """All at once, the clients folded into the batch."""
    MAPPED = "mapped"
    """All at once, by torch.func.vmap."""
    COMPILED = "compiled"
    """A chunk by one call of machine code that is made for chains of dense layers."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The way of a run."""

    kind: Kind
    chunk_size: int
    """Clients per chunk."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a trial shall find out."""

    kind: Kind | None
    """The way that the configuration names; None to find the fastest."""
    chunk_size: int | None
    cohort: int
    """Clients of a round: a chunk is never larger."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a trial found out about one way."""

    execution: Execution
    seconds_per_client: float


@dataclass(frozen=True, slots=True)
class Choice:
    """An execution, and why it is this one."""

    execution: Execution
    reason: str
    lasting: bool = True
    """Whether another trial would find the same, so that this one is worth remembering."""


def sizes_to_try(kind_of_device: str, cohort: int, most: int) -> tuple[int, ...]:
    """Chunk sizes worth a trial: the largest that can be filled and fits, and a quarter of it."""
    largest = max(1, min(LARGEST.get(kind_of_device, LARGEST["cuda"]), cohort, most))
    return tuple(sorted({largest, max(1, largest // 4)}))


def how_many_fit(bytes_per_client: int, memory: int) -> int:
    """Clients whose weights, gradients and activations a vnode's memory holds at once."""
    return max(1, int(memory * MEMORY_SHARE) // max(1, bytes_per_client))


def choose(one_by_one: Measured, together: Sequence[Measured], refused: Sequence[str]) -> Choice:
    """The fastest way; one by one unless another is clearly faster."""
    if not together:
        why = "; ".join(refused) or "several at once was not tried"
        return Choice(one_by_one.execution, why)
    best = min(together, key=lambda measured: measured.seconds_per_client)
    gain = one_by_one.seconds_per_client / best.seconds_per_client
    if gain < WORTH:
        return Choice(
            one_by_one.execution, f"several at once are {gain:.1f}x as fast, not worth it"
        )
    return Choice(best.execution, f"{gain:.1f}x as fast as one by one")
