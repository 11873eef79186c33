"""Decides how a chunk is computed: client by client, or several at once; and how many at once.

The execution decides the last bits of a model, so it is one pure function of what a configuration
and its model say: no clock, no cache, no size of a machine has a part in it. The coordinator asks
it once, before sites start, and writes the answer down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

WORTH = 1.15
"""How many times cheaper several at once must be."""
LARGEST = {"cpu": 64, "cuda": 1024}
"""Clients that train at once at most; beyond it, more are no faster."""
MEMORY_SHARE = 0.25
"""Part of a vnode's memory that a chunk's weights, gradients and activations may take."""
FIGURED_MEMORY = 2 << 30
"""Bytes that a vnode is taken to have where `resources.memory_per_worker` says nothing."""
SEQUENTIAL_CHUNK = 64
AS_CONFIGURED = "as the configuration says"
COPIES = {"plain": 2, "momentum": 3, "adam": 4}
"""How often a client's weights are in memory: with gradients and what the optimizer keeps."""


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


class LayerKind(StrEnum):
    """What kinds of work a model's operations are."""

    LINEAR = "linear"
    CONVOLUTION = "convolution"
    NORM = "norm"
    EMBEDDING = "embedding"
    BAG = "bag"
    """A sum or mean of embeddings."""
    RECURRENT = "recurrent"
    ATTENTION = "attention"
    POOLING = "pooling"
    DROPOUT = "dropout"
    SMOOTH = "smooth"
    """Elementwise, by exponentials: tanh, GELU, softmax."""
    POINTWISE = "pointwise"
    """Any other that touches each number once."""
    VIEW = "view"


@dataclass(frozen=True, slots=True)
class Layer:
    """One operation of a model's forward pass."""

    kind: LayerKind
    outputs: int
    """Numbers that it gives for one sample."""
    products: int = 0
    """Multiplications of one sample's forward pass."""
    steps: int = 1
    """Operations in a row: of a recurrent layer, its time steps."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model's structure says of its costs."""

    layers: tuple[Layer, ...]
    trained: int
    """Numbers that training moves."""
    tensors: int
    """Tensors that they are in."""
    numbers: int
    """All numbers of the state."""
    inputs: int
    """Numbers of one sample."""
    itemsize: int
    """Bytes of a weight: 4 or 8."""
    widths: tuple[int, ...] = ()
    """Of a chain of dense layers: its inputs, then the outputs of each."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a configuration says of its costs."""

    batch_size: int
    rule: str
    """How weights move: one of `COPIES`."""
    cohort: int
    """Clients of a round: a chunk is never larger."""
    memory: int = FIGURED_MEMORY
    """Bytes of a vnode."""
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a configuration names itself."""

    kind: Kind | None = None
    """None for `auto`."""
    chunk_size: int | None = None
    model: int | None = None
    """The number of the cost model; None for the newest."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An execution, and why it is this one."""

    execution: Execution
    reason: str
    costs: Mapping[Execution, float] = field(default_factory=dict, compare=False)
    """What each that was looked at is taken to cost, of a step of one client."""


def decide(
    model: ModelFacts, where: Circumstances, refused: Mapping[Kind, str], wish: Wish = Wish()
) -> Choice:
    """The cheapest execution by the numbered cost model; one by one unless another is much cheaper.

    `refused` are the ways that would give other results than training one by one, and why. What
    the wish names is taken, whatever it costs.
    """
    from .cost_model import costs_of

    if wish.kind is Kind.SEQUENTIAL or (wish.kind is not None and wish.chunk_size is not None):
        size = wish.chunk_size or SEQUENTIAL_CHUNK
        return Choice(Execution(wish.kind, size), AS_CONFIGURED)
    alone = Execution(Kind.SEQUENTIAL, SEQUENTIAL_CHUNK)
    kinds = [wish.kind] if wish.kind else _open(refused)
    looked_at = [Execution(kind, size) for kind in kinds for size in sizes(model, where)]
    costs = costs_of([alone, *looked_at], model, where, wish.model)
    if wish.kind is not None:
        return Choice(min(looked_at, key=costs.__getitem__), AS_CONFIGURED, costs)
    if not looked_at:
        why = "; ".join(f"{kind}: {reason}" for kind, reason in refused.items())
        return Choice(alone, why, costs)
    best = min(looked_at, key=costs.__getitem__)
    gain = costs[alone] / costs[best]
    if gain < WORTH:
        return Choice(alone, f"several at once would cost {1 / gain:.1f}x as much", costs)
    return Choice(best, f"about {gain:.0f}x as fast as one by one", costs)


def _open(refused: Mapping[Kind, str]) -> list[Kind]:
    """The ways to weigh against one by one; what folds is not mapped, which is slower."""
    found = [k for k in (Kind.COMPILED, Kind.FOLDED, Kind.MAPPED) if k not in refused]
    return [kind for kind in found if kind is not Kind.MAPPED or Kind.FOLDED not in found]


def sizes(model: ModelFacts, where: Circumstances) -> tuple[int, ...]:
    """Chunk sizes worth a look: the largest that can be filled and fits, and a quarter of it."""
    most = how_many_fit(bytes_per_client(model, where), where.memory)
    largest = max(1, min(LARGEST.get(where.device, LARGEST["cuda"]), where.cohort, most))
    return tuple(sorted({largest, max(1, largest // 4)}, reverse=True))


def bytes_per_client(model: ModelFacts, where: Circumstances) -> int:
    """Weights, gradients, the optimizer's memory and a batch's activations."""
    activations = sum(layer.outputs for layer in model.layers) + model.inputs
    weights = model.trained * COPIES[where.rule]
    return (weights + 2 * activations * where.batch_size) * model.itemsize


def how_many_fit(each: int, memory: int) -> int:
    """Clients of so many bytes that a vnode's memory holds at once."""
    return max(1, int(memory * MEMORY_SHARE) // max(1, each))
