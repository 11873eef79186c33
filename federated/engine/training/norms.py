"""Norms of many clients' tensors, each client's with the same bits whoever stands beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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


class NormBound:
    """Scales clients' updates of trained tensors down to a norm, client by client.

    An update is the difference from the client's first model (Sun et al. 2019, "Can you really
    backdoor federated learning?"). Updates within the bound keep their bits.
    """

    def __init__(self, most: float, roles: Roles) -> None:
        self._most = most
        self._names = {name for name, role in roles.items() if role is TensorRole.TRAINED}
        self._updates: dict[str, Tensor] = {}
        """Room for the updates of a chunk: to allocate it anew costs more than all arithmetic."""

    def apply(self, trained: Trained, start: Mapping[str, Tensor]) -> None:
        """Scale results down in place; `start` is the model with which these clients began."""
        moved = {name: rows for name, rows in trained.tensors.items() if name in self._names}
        if not moved:
            return
        updates = {name: self._update(name, rows, start[name]) for name, rows in moved.items()}
        factors = factors_to(self._most, updates.values()).tolist()
        for client in (place for place, factor in enumerate(factors) if factor != 1.0):
            for name, rows in moved.items():
                update = updates[name][client]
                torch.add(start[name], update, alpha=factors[client], out=rows[client])

    def _update(self, name: str, rows: Tensor, start: Tensor) -> Tensor:
        room = self._updates.get(name)
        if room is None or len(room) < len(rows):
            room = self._updates[name] = torch.empty_like(rows)
        return torch.sub(rows.detach(), start, out=room[: len(rows)])
