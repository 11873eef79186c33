"""Norms of many clients' tensors, each client's with the same bits whoever stands beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ...core.state import Roles, TensorRole
from .training import Trained

TINY = 1e-6
"""Added to a norm before a division by it, as PyTorch does."""


def factors_to(most: float, tensors: Iterable[Tensor]) -> Tensor:
    """(k,): what scales each client's rows down to the norm `most`, over all tensors together; 1
    where it is less.

    Each tensor is (k, *shape). A row's norm is computed by itself, since the bits of a norm of many
    rows depend on how many there are. As `torch.nn.utils.clip_grad_norm_`.
    """
    rows = [list(each) for each in tensors]
    norms = torch._foreach_norm([row for each in rows for row in each])
    count = len(rows[0])
    squares = torch.stack(norms[:count]).square()
    for at in range(count, len(norms), count):
        squares += torch.stack(norms[at : at + count]).square()
    return (most / (squares.sqrt() + TINY)).clamp(max=1.0)


def along(factors: Tensor, rows: Tensor) -> Tensor:
    """The factors (k,) in the shape that multiplies rows (k, *shape) client by client."""
    return factors.reshape(-1, *[1] * (rows.ndim - 1))


def bounded(trained: Trained, start: Mapping[str, Tensor], roles: Roles, most: float) -> Trained:
    """Results whose updates of trained tensors have at most this norm, client by client.

    An update is the difference from the client's first model; a larger one is scaled down (Sun et
    al. 2019, "Can you really backdoor federated learning?"). Smaller ones keep their bits.
    """
    moved = {
        name: rows for name, rows in trained.tensors.items() if roles[name] is TensorRole.TRAINED
    }
    if not moved:
        return trained
    updates = {name: rows.detach() - start[name] for name, rows in moved.items()}
    factors = factors_to(most, updates.values())
    if bool((factors == 1.0).all()):
        return trained
    tensors = dict(trained.tensors)
    for name, rows in moved.items():
        factor = along(factors, rows)
        tensors[name] = torch.where(factor == 1.0, rows, start[name] + factor * updates[name])
    return replace(trained, tensors=tensors)
