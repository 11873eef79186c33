"""A Partial refuses updates that are not finite, and gives no mean once a sum overflows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedpilot.federated.core.state import TensorRole
from fedpilot.federated.core.sums.partial import Partial, Reference, Tally
from partial_sums import ROLES, Update, everything, model, partial_of


def test_a_sum_overflows_when_its_bound_reaches_the_range_and_not_before() -> None:
    roles = {"w": TensorRole.TRAINED}
    start = {"w": np.zeros(2)}
    reference = Reference.of(start, roles)
    unit = math.ldexp(1.0, -reference.exponents["w"])
    half = Update("a", {"w": np.array([2.0**61, -(2.0**61)]) * unit}, 1, Tally())
    below = Update("b", {"w": np.array([2.0**60, 0.0]) * unit}, 1, Tally())
    assert partial_of([half, below], reference).overflowed == ()
    assert partial_of([half, half], reference).overflowed == ("w",)
    assert partial_of([replace(half, weight=2)], reference).overflowed == ("w",)


def test_updates_that_cancel_overflow_all_the_same() -> None:
    roles = {"w": TensorRole.TRAINED}
    reference = Reference.of({"w": np.zeros(1)}, roles)
    up, down = (Update(n, {"w": np.array([v])}, 1, Tally()) for n, v in (("a", 1e9), ("b", -1e9)))
    parts = [[up, down, up, down]], [[up], [down], [up], [down]], [[up, up], [down, down]]
    for chunks in parts:
        total = Partial(reference.exponents)
        for chunk in chunks:
            total.merge(partial_of(chunk, reference))
        assert total.overflowed == ("w",)
        with pytest.raises(OverflowError):
            total.mean()


def test_one_overflowed_tensor_forbids_the_mean_of_all() -> None:
    reference = Reference.of(model(), ROLES)
    partial = partial_of([Update("a", model([3e38, 0, 0]), 1, Tally())], reference)
    assert partial.overflowed == ("weight",)
    with pytest.raises(OverflowError, match="weight"):
        partial.mean()


def test_a_coarser_grid_holds_what_the_finer_could_not() -> None:
    state = model([2e9, 0, 0])
    for coarser, overflowed in ((0, ("weight",)), (8, ())):
        reference = Reference.of(model(), ROLES, coarser)
        assert partial_of([Update("a", state, 1, Tally())], reference).overflowed == overflowed


BAD = [
    pytest.param({"weight": [math.nan, 0, 0]}, id="not a number"),
    pytest.param({"weight": [0, math.inf, 0]}, id="infinite"),
    pytest.param({"weight": [0, 0, -math.inf]}, id="infinitely negative"),
    pytest.param({"statistic": [[math.nan, math.nan]]}, id="in the tensor that is added last"),
    pytest.param({"weight": [math.inf] * 3, "statistic": [[math.nan, 1]]}, id="in all of them"),
]


@pytest.mark.parametrize("values", BAD)
def test_an_update_that_is_not_finite_is_refused_as_a_whole_and_named(
    values: dict[str, Any],
) -> None:
    reference = Reference.of(model(), ROLES)
    bad = model([1, 1, 1]) | {n: np.array(v, dtype=np.float32) for n, v in values.items()}
    bad["batches"] = np.array(10**9)
    good = [Update(f"good_{i}", model([i, 1, 2]), 3, Tally().add(3, 1, float(i))) for i in range(3)]
    evil = Update("evil", bad, 5, Tally().add(5, 5, 1.0))
    expected = everything(partial_of(good, reference)) | {"refused": ["evil"]}
    for position in range(4):
        order = [*good[:position], evil, *good[position:]]
        assert everything(partial_of(order, reference)) == expected
        split = partial_of(order[:2], reference).merge(partial_of(order[2:], reference))
        assert everything(split) == expected


def test_a_loss_that_is_not_finite_refuses_the_update() -> None:
    reference = Reference.of(model(), ROLES)
    partial = Partial(reference.exponents)
    assert not partial.add("a", model(), 2, Tally().add(2, 0, math.nan), reference)
    assert partial.refused == ["a"]
    assert (partial.clients, partial.weight, partial.tally.samples) == (0, 0, 0)


def test_a_loss_that_is_not_finite_refuses_an_update_even_of_a_model_that_is_all_frozen() -> None:
    reference = Reference.of({"w": np.zeros(1)}, {"w": TensorRole.CONSTANT})
    partial = Partial(reference.exponents)
    assert not partial.add("a", {"w": np.zeros(1)}, 2, Tally().add(2, 0, math.inf), reference)


def test_frozen_tensors_may_hold_anything() -> None:
    reference = Reference.of(model(), ROLES)
    state = model() | {"frozen": np.array([math.nan], dtype=np.float32)}
    assert Partial(reference.exponents).add("a", state, 1, Tally(), reference)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(1.7e308, -1.7e308, id="the difference leaves float64"),
        pytest.param(math.inf, math.inf, id="the model itself is infinite"),
        pytest.param(0.0, 1.7e308, id="the grid units leave float64"),
    ],
)
def test_a_difference_that_float64_cannot_hold_is_refused_in_silence(
    before: float, after: float
) -> None:
    reference = Reference.of({"w": np.array([before])}, {"w": TensorRole.TRAINED})
    partial = Partial(reference.exponents)
    assert not partial.add("a", {"w": np.array([after])}, 1, Tally(), reference)
    assert partial.refused == ["a"]
