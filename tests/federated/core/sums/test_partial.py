"""A Partial is the same sum, whoever adds what, in whatever order, on however many workers."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.federated.core.state import TensorRole, digest
from fedpilot.federated.core.sums.partial import RANGE_BITS, Partial, Reference, Tally
from fedpilot.federated.engine.tensor_files import read_tensors, write_tensors
from partial_sums import ROLES, Update, everything, finite32, model, partial_of, updates


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


def in_units(new: object, old: object, exponent: int) -> int:
    """The update of one element in units of its grid, by arithmetic without any rounding but one.

    The difference is taken in the tensor's own type, as the module says: float32 in these tests.
    """
    moved = Fraction(float(np.subtract(new, old, dtype=np.float32)))  # type: ignore[call-overload]
    return round(moved * Fraction(2) ** exponent)


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
    roles = {"w": TensorRole.TRAINED, "scalar": TensorRole.COUNTER, "vector": TensorRole.COUNTER}
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
