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


def stack(module: nn.Module, kind: str, capacity: int, *, fused: bool) -> Stacked:
    """A stacked form of a module; NotStackable if it cannot have this one.

    `fused` says that the optimizer is plain SGD: a backward pass of a folded module is then itself
    the step, so that most gradients are never written. The module is unchanged.
    """
    if kind == "folded":
        return FoldedModule(module, capacity, fused=fused)
    return MappedModule(module, capacity)
