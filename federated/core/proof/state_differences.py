"""Finds how two states differ: in which tensors, in how many elements, by how much. Bits decide."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from ..state import Array, State


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDifference:
    """A tensor that differs between two states."""

    name: str
    elements: int | None = None
    """Elements of the tensor; None where only fingerprints are known or the shapes differ."""
    differing: int | None = None
    largest: float | None = None
    """Largest absolute difference of two finite elements; None without such a pair."""
    remark: str = ""
    """A difference that the numbers do not show."""


def state_differences(first: State, second: State) -> tuple[TensorDifference, ...]:
    """Tensors that differ, in the order of their names; empty for the same bits."""
    names = sorted(first.keys() | second.keys())
    found = (_difference(name, first.get(name), second.get(name)) for name in names)
    return tuple(difference for difference in found if difference is not None)


def _difference(name: str, first: Array | None, second: Array | None) -> TensorDifference | None:
    if first is None or second is None:
        side = "second" if first is None else "first"
        return TensorDifference(name=name, remark=f"only in the {side}")
    a, b = np.asarray(first), np.asarray(second)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return TensorDifference(name=name, remark=f"{_kind(a)} in one, {_kind(b)} in the other")
    a, b = np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1)
    apart = (_bytes(a) != _bytes(b)).any(axis=1)
    count = int(np.count_nonzero(apart))
    if not count:
        return None
    wide_a, wide_b = a[apart].astype(np.float64), b[apart].astype(np.float64)
    finite = np.isfinite(wide_a) & np.isfinite(wide_b)
    gaps = np.abs(wide_a[finite] - wide_b[finite])
    strange = count - int(np.count_nonzero(finite))
    return TensorDifference(
        name=name,
        elements=int(a.size),
        differing=count,
        largest=float(gaps.max()) if gaps.size else None,
        remark=f"{strange:,} not finite" if strange else "",
    )


def _bytes(flat: Array) -> Array:
    return flat.view(np.uint8).reshape(flat.size, flat.itemsize)


def _kind(array: Array) -> str:
    return f"{array.dtype} {array.shape}"


def fingerprints(state: State) -> dict[str, str]:
    """16 hex digits over the bytes of each tensor, as in `clients.jsonl`."""
    return {
        name: blake2b(np.ascontiguousarray(array).tobytes(), digest_size=8).hexdigest()
        for name, array in state.items()
    }
