"""The facts that decide an execution: the ways of computing, a model, and a config."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

FIGURED_MEMORY = 2 << 30
"""Bytes assumed for a vnode without `resources.memory_per_worker`."""
COPIES = {"plain": 2, "momentum": 3, "adam": 4}
"""Copies of a client's weights in memory: weights, gradients and the optimizer's state."""


class ExecutionKind(StrEnum):
    """A way of computing a chunk."""

    SEQUENTIAL = "sequential"
    FOLDED = "folded"
    """Several at once, the clients folded into the batch."""
    MAPPED = "mapped"
    """Several at once, by torch.func.vmap."""
    COMPILED = "compiled"
    """A chunk by one call of a compiled kernel, for chains of dense layers only."""


@dataclass(frozen=True, slots=True)
class Execution:
    """How a run computes its chunks."""

    kind: ExecutionKind
    chunk_size: int


class LayerKind(StrEnum):
    """Kinds of operations in a model."""

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
    """Any other operation that touches each number once."""
    VIEW = "view"


@dataclass(frozen=True, slots=True)
class Layer:
    """One operation of a model's forward pass."""

    kind: LayerKind
    outputs: int
    """Numbers per sample."""
    products: int = 0
    """Multiplications per sample in the forward pass."""
    steps: int = 1
    """Sequential operations: the time steps of a recurrent layer."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model's structure that decide its costs."""

    layers: tuple[Layer, ...]
    trained: int
    tensors: int
    """Tensors with trained parameters."""
    inputs: int
    """Numbers in one sample."""
    itemsize: int
    """Bytes of a weight: 4 or 8."""
    widths: tuple[int, ...] = ()
    """For a chain of dense layers: its inputs, then each layer's outputs."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Facts in a config that decide its costs."""

    batch_size: int
    rule: str
    """The optimizer's kind: a key of `COPIES`."""
    cohort: int
    """Clients per round, the upper limit of a chunk."""
    memory: int = FIGURED_MEMORY
    """Bytes of a vnode's memory."""
    device: str = "cpu"
    also_cpu: bool = False
    """Whether clients of some vnode classes train on CPUs, and those of others on GPUs."""


def bytes_per_client(model: ModelFacts, where: Circumstances) -> int:
    """Bytes for weights, gradients, the optimizer's memory and a batch's activations."""
    activations = sum(layer.outputs for layer in model.layers) + model.inputs
    weights = model.trained * COPIES[where.rule]
    return (weights + 2 * activations * where.batch_size) * model.itemsize
