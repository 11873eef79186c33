"""What the choice of an execution depends on: the ways there are, a model, and a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

FIGURED_MEMORY = 2 << 30
"""Bytes that a vnode is taken to have where `resources.memory_per_worker` says nothing."""
COPIES = {"plain": 2, "momentum": 3, "adam": 4}
"""How often a client's weights are in memory: with gradients and what the optimizer keeps."""


class ExecutionKind(StrEnum):
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

    kind: ExecutionKind
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


def bytes_per_client(model: ModelFacts, where: Circumstances) -> int:
    """Weights, gradients, the optimizer's memory and a batch's activations."""
    activations = sum(layer.outputs for layer in model.layers) + model.inputs
    weights = model.trained * COPIES[where.rule]
    return (weights + 2 * activations * where.batch_size) * model.itemsize
