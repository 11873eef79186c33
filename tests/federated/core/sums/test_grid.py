"""A tensor's grid comes from the round's model, and holds moves of every size and type."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpilot.federated.core.state import TensorRole
from fedpilot.federated.core.sums.partial import (
    FRACTION_BITS,
    SMALLEST_EXPONENT,
    Partial,
    Reference,
    Tally,
    grid,
)
from partial_sums import ROLES, Update, model, partial_of


@pytest.mark.parametrize(
    ("largest", "exponent"),
    [
        pytest.param(0.0, FRACTION_BITS - SMALLEST_EXPONENT, id="zeros have the finest grid"),
        pytest.param(2.0**-30, FRACTION_BITS - SMALLEST_EXPONENT, id="tiny weights share it"),
        pytest.param(0.75, FRACTION_BITS, id="weights below one have 32 bits"),
        pytest.param(1.0, FRACTION_BITS - 1, id="a weight of one needs a bit more room"),
        pytest.param(-1.0, FRACTION_BITS - 1, id="the sign does not matter"),
        pytest.param(2.0**100, FRACTION_BITS - 101, id="huge weights have a coarse grid"),
    ],
)
def test_the_grid_comes_from_the_largest_weight(largest: float, exponent: int) -> None:
    state = {"w": np.array([0.0, largest])}
    assert grid(state, {"w": TensorRole.TRAINED}) == {"w": exponent}
    assert grid(state, {"w": TensorRole.TRAINED}, coarser=8) == {"w": exponent - 8}


@pytest.mark.parametrize("weight", [math.inf, -math.inf, math.nan])
def test_a_model_that_is_not_finite_has_some_grid(weight: float) -> None:
    assert set(grid({"w": np.array([weight])}, {"w": TensorRole.TRAINED})) == {"w"}


def test_only_what_is_averaged_has_a_grid() -> None:
    assert set(grid(model(), ROLES)) == {"weight", "statistic"}


@pytest.mark.parametrize(
    ("before", "after", "dtype"),
    [
        pytest.param([0.0, 0.0], [0.0, 0.0], "float32", id="zero tensors that stay zero"),
        pytest.param([0.0, 0.0], [1e-9, -1e-9], "float32", id="zero tensors that move a little"),
        pytest.param([1e-30, 0.0], [2e-30, 0.0], "float32", id="weights far below the grid"),
        pytest.param([1e30, -1e30], [1.5e30, 1e30], "float32", id="huge weights"),
        pytest.param([2e38, 0.0], [-1e38, 0.0], "float32", id="a move as large as float32"),
        pytest.param([60000.0, 1.0], [-60000.0, 2.0], "float16", id="a move larger than float16"),
        pytest.param([0.1, 0.2], [0.3, 0.1], "float64", id="float64"),
        pytest.param([1e300, 0.0], [1.5e300, -1e300], "float64", id="huge float64 weights"),
        pytest.param([1e-310, 0.0], [2e-310, 0.0], "float64", id="denormal float64 weights"),
        pytest.param([0.1, -0.2], [0.3, 0.1], "float16", id="float16"),
        pytest.param([], [], "float32", id="a tensor without elements"),
    ],
)
def test_extreme_tensors_have_their_mean(
    before: list[float], after: list[float], dtype: str
) -> None:
    roles = {"w": TensorRole.TRAINED}
    start = {"w": np.array(before, dtype=dtype)}
    end = {"w": np.array(after, dtype=dtype)}
    reference = Reference.of(start, roles)
    partial = Partial(reference.exponents)
    for client in range(3):
        assert partial.add(str(client), end, 17, Tally(), reference)
    mean = partial.mean()["w"]
    assert mean.dtype == np.float64
    wide = np.result_type(dtype, np.float32)  # float16 in float32, the others in their own type
    moved = end["w"].astype(wide) - start["w"].astype(wide)
    unit = math.ldexp(1.0, -reference.exponents["w"])
    np.testing.assert_allclose(mean, moved, rtol=1e-15, atol=unit / 2)


def test_a_move_that_its_own_type_cannot_hold_is_refused_as_not_finite() -> None:
    reference = Reference.of({"w": np.array([3e38], dtype=np.float32)}, {"w": TensorRole.TRAINED})
    partial = Partial(reference.exponents)
    away = {"w": np.array([-3e38], dtype=np.float32)}
    assert not partial.add("a", away, 1, Tally(), reference)
    assert (partial.refused, partial.clients, partial.bounds) == (["a"], 0, {})


def test_a_move_without_weight_counts_nothing_however_far_it_goes() -> None:
    reference = Reference.of(model(), ROLES)
    partial = partial_of([Update("a", model([3e38, 0, 0]), 0, Tally())], reference)
    assert partial.overflowed == ()
    assert not partial.sums["weight"].any()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_trained_scalar_is_summed_like_any_tensor(dtype: str) -> None:
    roles = {"scale": TensorRole.TRAINED}
    start = {"scale": np.array(1.0, dtype=dtype)}
    reference = Reference.of(start, roles)
    parts = []
    for client, value in enumerate([2.0, 4.0]):
        part = Partial(reference.exponents)
        assert part.add(str(client), {"scale": np.array(value, dtype=dtype)}, 1, Tally(), reference)
        parts.append(part)
    total = parts[0].merge(parts[1])
    mean = total.mean()["scale"]
    assert np.shape(mean) == ()
    assert float(mean) == 2.0
