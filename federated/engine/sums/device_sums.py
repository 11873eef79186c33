"""Exact sums of many clients' moves by PyTorch's operations, on any device.

Every function here has a twin in `engine.compiled.sums`, which documents it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.population.sampling import Indices

TILE = 1 << 24
"""Numbers processed at a time, of one client at least."""


def add(
    rows: Tensor,
    reference: Tensor,
    scale: float,
    factors: npt.NDArray[np.float64],
    sums: Tensor,
    largest: npt.NDArray[np.float64],
    *,
    sign: int = 1,
) -> None:
    """Add every client's moves times its factor to `sums`; record its largest move."""
    weights = torch.from_numpy(factors).to(rows.device)
    found = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for part in _tiles(rows):
        moves = rows[part] - reference
        if moves.shape[1]:
            found[part] = moves.abs().amax(1).double()
        units = moves.mul_(scale).round_().double()
        sums += torch.mv(units.t(), weights[part]).to(torch.int64) * sign
    largest[:] = found.cpu().numpy()


def add_wide(rows: Tensor, reference: Tensor, scale: float, factors: Indices, sums: Tensor) -> None:
    """Like `add`, wherever the sum fits int64; a factor of 0 makes 0 of anything."""
    weights = torch.from_numpy(factors).to(rows.device).unsqueeze(1)
    for part in _tiles(rows):
        units = (rows[part] - reference).mul_(scale).round_().to(torch.int64)
        sums += (units * weights[part]).sum(0)


def _tiles(rows: Tensor) -> Iterator[slice]:
    clients = max(1, TILE // max(1, rows.shape[1]))
    for start in range(0, len(rows), clients):
        yield slice(start, start + clients)
