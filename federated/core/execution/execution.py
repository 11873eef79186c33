"""Decides how a chunk is computed: client by client or several at once, and how many at once.

The execution decides the last bits of a model, so it is a pure function of the config and the
model's structure. The coordinator decides once, before sites start, and records the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .cost_model import costs_of
from .facts import Circumstances, Execution, ExecutionKind, ModelFacts, bytes_per_client

WORTH = 1.15
"""Training several at once must be this many times cheaper to be chosen."""
LARGEST = {"cpu": 64, "cuda": 1024}
"""The most clients that train at once; more are no faster."""
MEMORY_SHARE = 0.25
"""Share of a vnode's memory for a chunk's weights, gradients and activations."""
SEQUENTIAL_CHUNK = 64
AS_CONFIGURED = "as the configuration says"


@dataclass(frozen=True, slots=True)
class ExecutionWish:
    """What a config sets itself."""

    kind: ExecutionKind | None = None
    """None for `auto`."""
    chunk_size: int | None = None
    model: int | None = None
    """The number of the cost model; None for the newest."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An execution, and the reason for it."""

    execution: Execution
    reason: str
    facts: ModelFacts | None = field(default=None, compare=False)
    """Of the model, if it was looked at."""


def decide(
    model: ModelFacts,
    where: Circumstances,
    refused: Mapping[ExecutionKind, str],
    wish: ExecutionWish = ExecutionWish(),
) -> Choice:
    """The cheapest execution by the numbered cost model; one by one unless another is much cheaper.

    `refused` has a reason per execution with other results; a `wish` is followed at any cost.
    """
    size = wish.chunk_size or (SEQUENTIAL_CHUNK if wish.kind is ExecutionKind.SEQUENTIAL else None)
    if wish.kind is not None and size is not None:
        return Choice(Execution(wish.kind, size), AS_CONFIGURED)
    alone = Execution(ExecutionKind.SEQUENTIAL, SEQUENTIAL_CHUNK)
    kinds = [wish.kind] if wish.kind else _open(refused)
    looked_at = [Execution(kind, size) for kind in kinds for size in sizes(model, where)]
    costs = costs_of([alone, *looked_at], model, where, wish.model)
    if wish.kind is not None:
        return Choice(min(looked_at, key=costs.__getitem__), AS_CONFIGURED)
    if not looked_at:
        why = "; ".join(f"{kind}: {reason}" for kind, reason in refused.items())
        return Choice(alone, why)
    best = min(looked_at, key=costs.__getitem__)
    gain = costs[alone] / costs[best]
    if gain < WORTH:
        return Choice(alone, f"several at once would cost {1 / gain:.1f}x as much")
    return Choice(best, f"about {gain:.0f}x as fast as one by one")


def _open(refused: Mapping[ExecutionKind, str]) -> list[ExecutionKind]:
    """Executions to compare with one by one; `mapped`, which is slower, only without `folded`."""
    kinds = [ExecutionKind.COMPILED, ExecutionKind.FOLDED, ExecutionKind.MAPPED]
    if ExecutionKind.FOLDED not in refused:
        kinds.remove(ExecutionKind.MAPPED)
    return [kind for kind in kinds if kind not in refused]


def sizes(model: ModelFacts, where: Circumstances) -> tuple[int, ...]:
    """Candidate chunk sizes: the largest that the cohort fills and memory holds, and a quarter."""
    most = how_many_fit(bytes_per_client(model, where), where.memory)
    largest = max(1, min(LARGEST.get(where.device, LARGEST["cuda"]), where.cohort, most))
    return tuple(sorted({largest, max(1, largest // 4)}, reverse=True))


def how_many_fit(each: int, memory: int) -> int:
    """How many clients of `each` bytes fit into `memory` bytes."""
    return max(1, int(memory * MEMORY_SHARE) // max(1, each))
