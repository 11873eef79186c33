"""Many clients as one computation: a module whose parameters have one row per client.

Two kinds, tried in this order: *folded* (clients folded into the batch, layers with weights
replaced by batched ones: the fastest) and *mapped* (`torch.func.vmap` over the whole module).
"""

from __future__ import annotations

from torch import nn

from .folded import FoldedModule, trace
from .mapped import MappedModule
from .protocol import NotStackable, Stacked

__all__ = ["FoldedModule", "MappedModule", "NotStackable", "Stacked", "stack", "trace"]


def stack(module: nn.Module, kind: str, capacity: int, *, rate: float | None) -> Stacked:
    """A stacked form of a module; NotStackable if it cannot have this one.

    `rate` is the learning rate of plain SGD, which a folded module applies in its backward pass, so
    that most gradients are never written; None for other optimizers. The module is unchanged.
    """
    if kind == "folded":
        return FoldedModule(module, capacity, rate=rate)
    return MappedModule(module, capacity)
