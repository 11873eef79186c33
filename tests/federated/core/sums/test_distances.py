"""Squared distances are those of NumPy, of any columns and types."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.sums.distances import squared_distance, squared_distances


@given(st.integers(1, 3000), st.integers(0, 99))
def test_squared_distances_are_those_of_some_columns(width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, reference = random.normal(size=(3, width + 7)), random.normal(size=width)
    found = squared_distances(rows, reference, slice(4, 4 + width))
    wanted = ((rows[:, 4 : 4 + width] - reference) ** 2).sum(axis=1)
    assert found == pytest.approx(wanted, rel=1e-12)


def test_the_distance_of_two_models_is_over_the_tensors_of_the_names() -> None:
    one = {"a": np.ones(3, np.float16), "b": np.zeros((2, 2)), "c": np.zeros(9)}
    other = {"a": np.zeros(3, np.float16), "b": np.full((2, 2), 2.0), "c": np.ones(9)}
    assert squared_distance(one, other, ["a", "b"]) == 3 + 16
