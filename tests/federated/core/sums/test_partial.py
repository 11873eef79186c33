"""A Partial is the same sum, whoever adds what, in whatever order, on however many workers."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.federated.core.state import Role, State, digest
from fedpilot.federated.core.sums.partial import (
    FRACTION_BITS,
    RANGE_BITS,
    SMALLEST_EXPONENT,
    Partial,
    Reference,
    Tally,
    exact,
    grid,
)
from fedpilot.federated.engine.tensor_files import read_tensors, write_tensors

Array = npt.NDArray[Any]

ROLES = {
    "weight": Role.TRAINED,
    "statistic": Role.STATISTIC,
    "batches": Role.COUNTER,
    "frozen": Role.CONSTANT,
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


def merged_as_a_tree(
    updates: Sequence[Update], reference: Reference, draw: st.DataObject
) -> Partial:
    """Cut the updates into chunks, then merge two of what there is until one is left."""
    order = list(draw.draw(st.permutations(updates)))
    parts: list[Partial] = []
    while order:
        take = draw.draw(st.integers(1, len(order)))
        parts.append(partial_of(order[:take], reference))
        order = order[take:]
    while len(parts) > 1:
        a = parts.pop(draw.draw(st.integers(0, len(parts) - 1)))
        b = parts.pop(draw.draw(st.integers(0, len(parts) - 1)))
        parts.append(a.merge(b))
    return parts[0] if parts else Partial(reference.exponents)


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


def in_units(new: object, old: object, exponent: int) -> int:
    """The update of one element in units of its grid, by arithmetic without any rounding but one.

    The difference is taken in the tensor's own type, as the module says: float32 in these tests.
    """
    moved = Fraction(float(np.subtract(new, old, dtype=np.float32)))  # type: ignore[call-overload]
    return round(moved * Fraction(2) ** exponent)


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


# -- the order does not matter ----------------------------------------------------------------


@given(given_updates=updates(), data=st.data(), coarser=st.sampled_from([0, 8, 56]))
@settings(deadline=None)
def test_any_grouping_order_and_merge_tree_gives_the_same(
    given_updates: list[Update], data: st.DataObject, coarser: int
) -> None:
    reference = Reference.of(model(), ROLES, coarser)
    alone = partial_of(given_updates, reference)
    tree = merged_as_a_tree(given_updates, reference, data)
    assert everything(tree) == everything(alone)
    assert digest(tree.mean()) == digest(alone.mean())


@given(given_updates=updates(finite32), data=st.data(), coarser=st.sampled_from([0, 8, 56]))
@settings(deadline=None)
def test_overflow_is_found_alike_in_every_grouping_and_gives_no_mean(
    given_updates: list[Update], data: st.DataObject, coarser: int
) -> None:
    reference = Reference.of(model(), ROLES, coarser)
    alone = partial_of(given_updates, reference)
    tree = merged_as_a_tree(given_updates, reference, data)
    assert everything(tree) == everything(alone)
    if alone.overflowed:
        for partial in (alone, tree):
            with pytest.raises(OverflowError, match=alone.overflowed[0]):
                partial.mean()
    else:
        assert digest(tree.mean()) == digest(alone.mean())


@given(given_updates=updates(finite32), coarser=st.sampled_from([0, 8, 56]))
@settings(deadline=None)
def test_the_sums_are_those_of_arithmetic_with_big_integers(
    given_updates: list[Update], coarser: int
) -> None:
    start = model()
    reference = Reference.of(start, ROLES, coarser)
    partial = partial_of(given_updates, reference)
    for name in ("weight", "statistic"):
        exponent = reference.exponents[name]
        units = [
            [
                in_units(n, o, exponent)
                for n, o in zip(u.state[name].flat, start[name].flat, strict=True)
            ]
            for u in given_updates
        ]
        sums = [
            sum(row[i] * u.weight for row, u in zip(units, given_updates, strict=True))
            for i in range(start[name].size)
        ]
        bound = sum(
            max(map(abs, row)) * u.weight for row, u in zip(units, given_updates, strict=True)
        )
        assert partial.bounds[name] == bound
        assert (name in partial.overflowed) == (bound >= 2**RANGE_BITS)
        if name not in partial.overflowed:
            assert partial.sums[name].dtype == np.int64
            assert partial.sums[name].ravel().tolist() == sums
            if not partial.overflowed:
                total = sum(u.weight for u in given_updates)
                exactly = [float(Fraction(s, total) / Fraction(2) ** exponent) for s in sums]
                assert partial.mean()[name].ravel().tolist() == pytest.approx(
                    exactly, rel=1e-15, abs=0
                )


@given(given_updates=updates(), data=st.data())
@settings(deadline=None)
def test_merging_leaves_the_other_partial_as_it_was(
    given_updates: list[Update], data: st.DataObject
) -> None:
    reference = Reference.of(model(), ROLES)
    other = partial_of(given_updates, reference)
    before = everything(other)
    total = Partial(reference.exponents).merge(other)
    for _ in range(2):
        total.merge(partial_of(given_updates, reference))
    assert everything(other) == before


def test_the_mean_is_near_the_weighted_mean_of_the_updates() -> None:
    rng = np.random.default_rng(5)
    start = model()
    reference = Reference.of(start, ROLES)
    given_updates = [
        Update(str(i), {**start, "weight": rng.normal(size=3).astype("f4")}, 1 + i, Tally())
        for i in range(20)
    ]
    mean = partial_of(given_updates, reference).mean()["weight"] + start["weight"]
    expected = np.average(
        [u.state["weight"] for u in given_updates],
        axis=0,
        weights=[u.weight for u in given_updates],
    )
    np.testing.assert_allclose(mean, expected, atol=2.0**-33)


# -- what it is made of -----------------------------------------------------------------------


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
    assert grid(state, {"w": Role.TRAINED}) == {"w": exponent}
    assert grid(state, {"w": Role.TRAINED}, coarser=8) == {"w": exponent - 8}


@pytest.mark.parametrize("weight", [math.inf, -math.inf, math.nan])
def test_a_model_that_is_not_finite_has_some_grid(weight: float) -> None:
    assert set(grid({"w": np.array([weight])}, {"w": Role.TRAINED})) == {"w"}


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
    roles = {"w": Role.TRAINED}
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
    reference = Reference.of({"w": np.array([3e38], dtype=np.float32)}, {"w": Role.TRAINED})
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
    roles = {"scale": Role.TRAINED}
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


def test_a_partial_without_clients_adds_nothing() -> None:
    reference = Reference.of(model(), ROLES)
    one = Update("a", model([1, 2, 3]), 4, Tally().add(4, 1, 2.0))
    empty, full = Partial(reference.exponents), partial_of([one], reference)
    expected = everything(full)
    assert everything(empty.merge(full)) == expected
    assert everything(full.merge(Partial(reference.exponents))) == expected
    assert Partial(reference.exponents).mean() == {}


def test_partials_of_different_grids_are_not_merged() -> None:
    fine, coarse = (Reference.of(model(), ROLES, bits) for bits in (0, 8))
    with pytest.raises(ValueError, match="grids"):
        Partial(fine.exponents).merge(Partial(coarse.exponents))


def test_counters_take_the_elementwise_largest() -> None:
    roles = {"w": Role.TRAINED, "scalar": Role.COUNTER, "vector": Role.COUNTER}
    start = {"w": np.zeros(1), "scalar": np.array(0), "vector": np.array([0, 0])}
    reference = Reference.of(start, roles)
    states = [
        {"w": np.zeros(1), "scalar": np.array(5), "vector": np.array([1, 9])},
        {"w": np.zeros(1), "scalar": np.array(2), "vector": np.array([7, 3])},
        {"w": np.zeros(1), "scalar": np.array(-4), "vector": np.array([-1, -1])},
    ]
    for order in itertools.permutations(states):
        partial = Partial(reference.exponents)
        for state in order:
            partial.add("a", state, 1, Tally(), reference)
        assert np.shape(partial.largest["scalar"]) == ()
        assert int(partial.largest["scalar"]) == 5
        assert partial.largest["vector"].tolist() == [7, 9]


def test_a_sum_keeps_nothing_of_the_tensors_it_was_given() -> None:
    start = model()
    reference = Reference.of(start, ROLES)
    state = model([1, 2, 3])
    partial = Partial(reference.exponents)
    partial.add("a", state, 1, Tally(), reference)
    before = everything(partial)
    for array in state.values():
        array[...] = 99
    assert everything(partial) == before


# -- overflow ---------------------------------------------------------------------------------


def test_a_sum_overflows_when_its_bound_reaches_the_range_and_not_before() -> None:
    roles = {"w": Role.TRAINED}
    start = {"w": np.zeros(2)}
    reference = Reference.of(start, roles)
    unit = math.ldexp(1.0, -reference.exponents["w"])
    half = Update("a", {"w": np.array([2.0**61, -(2.0**61)]) * unit}, 1, Tally())
    below = Update("b", {"w": np.array([2.0**60, 0.0]) * unit}, 1, Tally())
    assert partial_of([half, below], reference).overflowed == ()
    assert partial_of([half, half], reference).overflowed == ("w",)
    assert partial_of([replace(half, weight=2)], reference).overflowed == ("w",)


def test_updates_that_cancel_overflow_all_the_same() -> None:
    roles = {"w": Role.TRAINED}
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


# -- updates that are not finite --------------------------------------------------------------

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
    reference = Reference.of({"w": np.zeros(1)}, {"w": Role.CONSTANT})
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
    reference = Reference.of({"w": np.array([before])}, {"w": Role.TRAINED})
    partial = Partial(reference.exponents)
    assert not partial.add("a", {"w": np.array([after])}, 1, Tally(), reference)
    assert partial.refused == ["a"]


# -- the way over a wire ----------------------------------------------------------------------


@given(given_updates=updates(finite32))
@settings(deadline=None, max_examples=25)
def test_a_partial_comes_back_from_its_wire_form(given_updates: list[Update]) -> None:
    reference = Reference.of(model(), ROLES)
    partial = partial_of(given_updates, reference)
    partial.add("evil", model([math.nan, 0, 0]), 1, Tally(), reference)
    header, tensors = partial.to_wire()
    back = Partial.from_wire(json.loads(json.dumps(header)), tensors)
    assert everything(back) == everything(partial)
    assert back.exponents == dict(partial.exponents)


@pytest.mark.parametrize("clients", [0, 1, 3])
def test_a_partial_comes_back_from_a_file_and_goes_on(clients: int, tmp_path: Path) -> None:
    reference = Reference.of(model(), ROLES)
    every = [
        Update(f"client_{i}", model([i, -i, 0.5]), i + 1, Tally().add(i + 1, i, i / 3))
        for i in range(5)
    ]
    header, tensors = partial_of(every[:clients], reference).to_wire()
    write_tensors(tmp_path / "partial.safetensors", tensors, header)
    back = Partial.from_wire(*read_tensors(tmp_path / "partial.safetensors"))
    back.merge(partial_of(every[clients:], reference))
    whole = partial_of(every, reference)
    assert everything(back) == everything(whole)
    assert digest(back.mean()) == digest(whole.mean())
    assert digest(back.largest) == digest(whole.largest)


def test_an_overflowed_partial_is_still_overflowed_after_the_wire() -> None:
    reference = Reference.of(model(), ROLES)
    over = partial_of([Update("a", model([3e38, 0, 0]), 9, Tally())], reference)
    header, tensors = over.to_wire()
    back = Partial.from_wire(json.loads(json.dumps(header)), tensors)
    assert back.overflowed == ("weight",)
    fine = partial_of([Update("b", model([1, 0, 0]), 9, Tally())], reference)
    for total in (back.merge(fine), partial_of([], reference).merge(over), fine.merge(over)):
        assert total.overflowed == ("weight",)


# -- tallies ----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 100), st.floats(0, 1e9)), min_size=1, max_size=8))
def test_tallies_merge_in_any_order(parts: list[tuple[int, float]]) -> None:
    def total(order: Sequence[tuple[int, float]]) -> list[int]:
        tally = Tally()
        for samples, loss in order:
            tally.merge(Tally().add(samples, 1, loss))
        return tally.to_json()

    assert total(parts) == total(parts[::-1]) == total(sorted(parts))
    assert Tally.from_json(total(parts)).to_json() == total(parts)


@pytest.mark.parametrize(
    ("tally", "loss", "accuracy"),
    [
        pytest.param(Tally(), math.nan, math.nan, id="nothing was measured"),
        pytest.param(Tally().add(4, 3, 2.0), 0.5, 0.75, id="means per sample"),
        pytest.param(Tally().add(4, 3, math.inf), math.nan, 0.75, id="an infinite loss"),
        pytest.param(
            Tally().add(4, 3, 2.0).merge(Tally().add(1, 0, math.nan)), math.nan, 0.6,
            id="one part that is not finite spoils the loss alone",
        ),
    ],
)  # fmt: skip
def test_what_a_tally_says(tally: Tally, loss: float, accuracy: float) -> None:
    assert tally.mean_loss == pytest.approx(loss, nan_ok=True)
    assert tally.accuracy == pytest.approx(accuracy, nan_ok=True)


@given(st.floats(-(2.0**900), 2.0**900, allow_nan=False))
def test_a_loss_is_rounded_once_to_the_nearest_unit(value: float) -> None:
    assert exact(value) == round(Fraction(value) * 2**32)


@pytest.mark.parametrize("loss", [1e300, -1e300, 1.7e308])
def test_a_finite_loss_is_never_too_large_to_count(loss: float) -> None:
    tally = Tally().add(1, 0, loss)
    tally.merge(Tally().add(1, 0, loss))
    assert tally.mean_loss == loss
