"""Norms of many clients' tensors. The bits of a norm depend on one client alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ...core.state import Roles, TensorRole
from .training import Trained


def norms_of(tensors: Iterable[Tensor]) -> Tensor:
    """(k,) float64: each client's norm over all tensors (k, *shape) together.

    A row's norm is computed by itself, since the bits of a norm of many rows depend on how many
    there are.
    """
    rows = [list(each) for each in tensors]
    norms = torch._foreach_norm([row for each in rows for row in each], 2, torch.float64)
    count = len(rows[0])
    squares = torch.stack(norms[:count]).square()
    for at in range(count, len(norms), count):
        squares += torch.stack(norms[at : at + count]).square()
    return squares.sqrt()


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
        at = {rows.data_ptr(): name for name, rows in reversed(moved.items())}
        moved = {name: moved[name] for name in at.values()}  # tied weights are one tensor
        if not moved:
            return
        updates = {name: self._update(name, rows, start[name]) for name, rows in moved.items()}
        for client, norm in enumerate(norms_of(updates.values()).tolist()):
            if norm > self._most:
                for name, rows in moved.items():
                    update, factor = updates[name][client], self._most / norm
                    torch.add(start[name], update, alpha=factor, out=rows[client])

    def _update(self, name: str, rows: Tensor, start: Tensor) -> Tensor:
        room = self._updates.get(name)
        if room is None or len(room) < len(rows):
            room = self._updates[name] = torch.empty_like(rows)
        return torch.sub(rows.detach(), start, out=room[: len(rows)])
