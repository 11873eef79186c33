"""A model's state, the role of each tensor in it, and its digest.

A state maps names to NumPy arrays, as `Module.state_dict()`. Aggregation treats tensors by role,
since averaging all of them blindly corrupts counters and frozen weights (flwrlabs/flower#611,
NVIDIA/NVFlare#1718).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
State = Mapping[str, Array]
Roles = Mapping[str, "TensorRole"]


class TensorRole(StrEnum):
    """What a tensor is for, and therefore how the clients' values become one."""

    TRAINED = "trained"
    """A parameter: mean of the updates, then the server optimizer."""
    STATISTIC = "statistic"
    """A floating-point buffer (BatchNorm statistics): mean, no server optimizer."""
    COUNTER = "counter"
    """An integer buffer (`num_batches_tracked`): the largest value seen."""
    CONSTANT = "constant"
    """Frozen parameters, masks, tables: unchanged."""


def role_of(*, parameter: bool, requires_grad: bool, kind: str, keep_buffers: bool) -> TensorRole:
    """The role of one tensor; `kind` is NumPy's (`f` floating, `i`/`u` integer, `b` bool)."""
    if parameter:
        return TensorRole.TRAINED if requires_grad and kind == "f" else TensorRole.CONSTANT
    if kind == "f":
        return TensorRole.CONSTANT if keep_buffers else TensorRole.STATISTIC
    return TensorRole.COUNTER if kind in "iu" else TensorRole.CONSTANT


def averaged(roles: Roles) -> tuple[str, ...]:
    """Tensors that are summed over clients, sorted by name."""
    return tuple(
        sorted(n for n, r in roles.items() if r in (TensorRole.TRAINED, TensorRole.STATISTIC))
    )


def counters(roles: Roles) -> tuple[str, ...]:
    """Tensors whose largest value is kept, sorted by name."""
    return tuple(sorted(n for n, r in roles.items() if r is TensorRole.COUNTER))


def digest(state: State) -> str:
    """SHA-256 (hex) over name, dtype, shape and little-endian bytes, in the order of names."""
    sha = hashlib.sha256()
    for name in sorted(state):
        array = np.asarray(state[name])
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        sha.update(f"{name}\0{array.dtype.name}\0{array.shape}\0".encode())
        sha.update(np.ascontiguousarray(little).tobytes())
    return sha.hexdigest()


def under(prefix: str, arrays: State) -> dict[str, Array]:
    """Arrays whose names begin with a prefix, by the rest of their names."""
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def in_a_row(array: Array) -> Array:
    """A copy of an array's numbers, (n,), of float32 at least."""
    return np.array(array, dtype=np.promote_types(array.dtype, np.float32)).reshape(-1)


def nbytes(arrays: Iterable[Array]) -> int:
    """Total bytes of the arrays."""
    return sum(array.nbytes for array in arrays)
