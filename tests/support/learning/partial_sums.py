"""Updates of a small model with a tensor of every role, and the sums of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from fedpilot.federated.core.state import State, TensorRole
from fedpilot.federated.core.sums.partial import Partial, Reference, Tally

Array = npt.NDArray[Any]

ROLES = {
    "weight": TensorRole.TRAINED,
    "statistic": TensorRole.STATISTIC,
    "batches": TensorRole.COUNTER,
    "frozen": TensorRole.CONSTANT,
}


@dataclass(frozen=True)
class Update:
    client_id: str
    state: State
    weight: int
    tally: Tally


def model(
    weight: Sequence[float] = (0.5, -0.25, 0.0), dtype: npt.DTypeLike = np.float32
) -> dict[str, Array]:
    return {
        "weight": np.array(weight, dtype=dtype),
        "statistic": np.array([[1.0, 2.0]], dtype=np.float32),
        "batches": np.array(3, dtype=np.int64),
        "frozen": np.array([7.0], dtype=np.float32),
    }


def partial_of(updates: Sequence[Update], reference: Reference) -> Partial:
    partial = Partial(reference.exponents)
    for each in updates:
        partial.add(each.client_id, each.state, each.weight, replace(each.tally), reference)
    return partial


def everything(partial: Partial) -> dict[str, Any]:
    """All that a Partial says; sums that overflowed are not to be used and do not count."""
    over = set(partial.overflowed)
    return {
        "sums": {n: a.tolist() for n, a in partial.sums.items() if n not in over},
        "bounds": dict(partial.bounds),
        "largest": {n: np.asarray(a).tolist() for n, a in partial.largest.items()},
        "weight": partial.weight,
        "clients": partial.clients,
        "refused": sorted(partial.refused),
        "tally": partial.tally.to_json(),
        "overflowed": partial.overflowed,
    }


finite32 = st.floats(allow_nan=False, allow_infinity=False, width=32)
tame = st.floats(-100, 100, width=32)
weights = st.integers(1, 10_000)


@st.composite
def updates(draw: st.DrawFn, values: st.SearchStrategy[float] = tame) -> list[Update]:
    made = []
    for index in range(draw(st.integers(1, 7))):
        three = draw(st.lists(values, min_size=3, max_size=3))
        two = draw(st.lists(values, min_size=2, max_size=2))
        state = {
            "weight": np.array(three, dtype=np.float32),
            "statistic": np.array([two], dtype=np.float32),
            "batches": np.array(draw(st.integers(0, 2**62)), dtype=np.int64),
            "frozen": np.array([draw(values)], dtype=np.float32),
        }
        weight = draw(weights)
        tally = Tally().add(weight, draw(st.integers(0, weight)), draw(st.floats(0, 1e6)))
        made.append(Update(f"client_{index}", state, weight, tally))
    return made
