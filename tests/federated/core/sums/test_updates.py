"""A Partial that keeps every update is the same union, whoever adds what, in whatever order."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedpilot.federated.core.state import Array, State, TensorRole, digest
from fedpilot.federated.core.sums.partial import Partial, Reference, Tally, grid
from fedpilot.federated.core.sums.updates import bytes_of_one
from fedpilot.federated.engine.sums.collecting import Collection
from fedpilot.federated.engine.tensor_files import read_tensors, write_tensors

ROLES = {
    "weight": TensorRole.TRAINED,
    "half": TensorRole.TRAINED,
    "scale": TensorRole.TRAINED,
    "statistic": TensorRole.STATISTIC,
    "batches": TensorRole.COUNTER,
    "frozen": TensorRole.CONSTANT,
}
KEPT = ("half", "scale", "statistic", "weight")


@dataclass(frozen=True)
class Sent:
    client_id: str
    state: State
    weight: int
    tally: Tally


def model(weight: Sequence[float] = (0.5, -0.25, 0.0), batches: int = 3) -> dict[str, Array]:
    return {
        "weight": np.array(weight, dtype=np.float32),
        "half": np.array([1.0, 2.0], dtype=np.float16),
        "scale": np.array(1.5, dtype=np.float64),
        "statistic": np.array([[1.0, 2.0]], dtype=np.float32),
        "batches": np.array(batches, dtype=np.int64),
        "frozen": np.array([7.0], dtype=np.float32),
    }


REFERENCE = Reference.of(model(), ROLES)


def union_of(sent: Sequence[Sent]) -> Partial:
    partial = Partial.keeping_updates()
    for each in sent:
        partial.add(each.client_id, each.state, each.weight, replace(each.tally), REFERENCE)
    return partial


def everything(partial: Partial) -> dict[str, Any]:
    assert partial.updates is not None
    return {
        "updates": {
            client_id: (digest(each.moved), each.weight, each.measured)
            for client_id, each in partial.updates
        },
        "largest": {n: np.asarray(a).tolist() for n, a in partial.largest.items()},
        "weight": partial.weight,
        "clients": partial.clients,
        "refused": sorted(partial.refused),
        "tally": partial.tally.to_json(),
    }


values = st.floats(-100, 100, width=16) | st.sampled_from([0.0, -0.0, math.nan, math.inf])


@st.composite
def updates(draw: st.DrawFn) -> list[Sent]:
    made = []
    for index in range(draw(st.integers(1, 7))):
        state = model(draw(st.lists(values, min_size=3, max_size=3)), draw(st.integers(0, 2**62)))
        state["half"] = np.array(draw(st.lists(values, min_size=2, max_size=2)), dtype=np.float16)
        weight = draw(st.integers(0, 1000))
        tally = Tally().add(weight, draw(st.integers(0, weight)), draw(st.floats(0, 1e6)))
        made.append(Sent(f"client_{index}", state, weight, tally))
    return made


@given(sent=updates(), data=st.data())
@settings(deadline=None)
def test_any_grouping_order_overlap_and_merge_tree_gives_the_same(
    sent: list[Sent], data: st.DataObject
) -> None:
    alone = union_of(sent)
    again = data.draw(st.lists(st.sampled_from(sent), max_size=4))
    order = data.draw(st.permutations([*sent, *again]))
    parts = [Partial.keeping_updates()]
    while order:
        take = data.draw(st.integers(1, len(order)))
        parts.append(union_of(order[:take]))
        order = order[take:]
    while len(parts) > 1:
        a = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        b = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        before = everything(b)
        parts.append(a.merge(b))
        assert everything(b) == before
    assert everything(parts[0]) == everything(alone)
    assert parts[0].merge(parts[0]) is parts[0]
    assert everything(parts[0]) == everything(alone)


@given(sent=updates())
@settings(deadline=None)
def test_the_counts_are_those_of_the_clients_that_are_kept(sent: list[Sent]) -> None:
    partial = union_of(sent)
    fine = [s for s in sent if all(np.isfinite(s.state[n]).all() for n in KEPT)]
    assert partial.updates is not None
    assert [client_id for client_id, _ in partial.updates] == [s.client_id for s in fine]
    assert sorted(partial.refused) == [s.client_id for s in sent if s not in fine]
    assert (partial.clients, partial.weight) == (len(fine), sum(s.weight for s in fine))
    total = Tally()
    for each in fine:
        total.merge(each.tally)
    assert partial.tally.to_json() == total.to_json()
    assert partial.largest.get("batches") == max((s.state["batches"] for s in fine), default=None)
    assert (partial.sums, partial.overflowed) == ({}, ())


@given(sent=updates())
@settings(deadline=None, max_examples=25)
def test_a_union_comes_back_from_its_wire_form(sent: list[Sent]) -> None:
    partial = union_of(sent)
    header, tensors = partial.to_wire()
    back = Partial.from_wire(json.loads(json.dumps(header)), tensors)
    assert everything(back) == everything(partial)
    assert everything(back.merge(union_of(sent))) == everything(partial)


@pytest.mark.parametrize("clients", [0, 1, 3])
def test_a_union_comes_back_from_a_file_and_goes_on(clients: int, tmp_path: Path) -> None:
    sent = [Sent(f"no {i} / ü", model([i, -i, 0.5], i), i + 1, Tally().add(i + 1, i, i / 3))
            for i in range(5)]  # fmt: skip
    header, tensors = union_of(sent[:clients]).to_wire()
    write_tensors(tmp_path / "partial.safetensors", tensors, header)
    back = Partial.from_wire(*read_tensors(tmp_path / "partial.safetensors"))
    assert everything(back.merge(union_of(sent[clients:]))) == everything(union_of(sent))


def test_what_is_kept_is_how_far_each_tensor_moved_in_its_own_type() -> None:
    start = model()
    end = model([1.5, -0.25, 2.0])
    end["half"] = np.array([65504.0, -65504.0], dtype=np.float16)
    end["scale"] = np.array(2.5)
    partial = union_of([Sent("a", end, 1, Tally())])
    assert partial.updates is not None
    ((_, update),) = partial.updates
    assert {n: (a.dtype, a.shape) for n, a in update.moved.items()} == {
        "weight": (np.float32, (3,)),
        "half": (np.float32, (2,)),  # a move between halves may be none
        "scale": (np.float64, ()),
        "statistic": (np.float32, (1, 2)),
    }
    for name, moved in update.moved.items():
        wide = end[name].astype(moved.dtype) - start[name].astype(moved.dtype)
        assert np.array_equal(moved, wide)
    assert partial.updates.nbytes == bytes_of_one(start, ROLES) == 4 * 3 + 4 * 2 + 8 + 4 * 2


def test_a_union_keeps_nothing_of_the_tensors_it_was_given() -> None:
    state = model([1, 2, 3])
    partial = union_of([Sent("a", state, 1, Tally())])
    before = everything(partial)
    for array in state.values():
        array[...] = 99
    assert everything(partial) == before


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Sent("a", model([1, 2, 4]), 2, Tally().add(2, 1, 1.0)), id="another tensor"),
        pytest.param(Sent("a", model([1, -0.25, 3]), 2, Tally().add(2, 1, 1.0)), id="a number"),
        pytest.param(Sent("a", model([1, 2, 3]), 3, Tally().add(2, 1, 1.0)), id="another weight"),
        pytest.param(Sent("a", model([1, 2, 3]), 2, Tally().add(2, 1, 1.5)), id="another loss"),
    ],
)
def test_two_different_updates_of_a_client_are_an_error_and_change_nothing(other: Sent) -> None:
    good = Sent("a", model([1, 2, 3]), 2, Tally().add(2, 1, 1.0))
    partial = union_of([good, Sent("b", model(), 1, Tally())])
    before = everything(partial)
    with pytest.raises(ValueError, match="different updates of a "):
        partial.merge(union_of([other, Sent("c", model(), 1, Tally())]))
    assert everything(partial) == before


def test_a_client_cannot_be_refused_and_not_refused() -> None:
    good = Sent("a", model([1, 2, 3]), 2, Tally())
    bad = Sent("a", model([1, math.nan, 3]), 2, Tally())
    for one, other in itertools.permutations([good, bad]):
        with pytest.raises(ValueError, match="a was refused"):
            union_of([one]).merge(union_of([other]))
    assert everything(union_of([bad]).merge(union_of([bad])))["refused"] == ["a"]


def test_a_loss_that_is_not_finite_refuses_the_update() -> None:
    partial = union_of([Sent("a", model(), 2, Tally().add(2, 0, math.nan))])
    assert (partial.refused, partial.clients, partial.weight) == (["a"], 0, 0)


def test_sums_and_unions_do_not_mix() -> None:
    union, total = union_of([]), Partial({})
    for one, other in itertools.permutations([union, total]):
        with pytest.raises(ValueError, match="cannot be merged"):
            one.merge(other)
    with pytest.raises(ValueError, match="kept and not summed"):
        union.mean()
    with pytest.raises(ValueError, match="keeps no updates"):
        total.keep("a", {}, 1, Tally())


# -- what a worker collects -------------------------------------------------------------------


def collected(collection: Collection, sent: Sequence[Sent], sizes: Sequence[int]) -> Partial:
    """Add the clients in groups of such sizes, as trainers give them, and take what there is."""
    collection.begin(tensors(model()), grid(model(), ROLES))
    start = 0
    for size in sizes:
        group = sent[start : start + size]
        start += size
        if group:
            trained = {
                n: torch.stack([tensors(s.state)[n] for s in group]) for n in model() if n != "half"
            }  # a tensor that is missing did not move
            collection.add(
                np.array([int(s.client_id.removeprefix("client_")) for s in group]),
                trained,
                np.array([s.weight for s in group]),
                np.array([s.tally.loss / 2**32 for s in group]),
            )
            for tensor in trained.values():
                tensor.zero_()  # trainers use their memory again
    return collection.take()


def tensors(state: State) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(array)) for name, array in state.items()}


@given(sent=updates(), sizes=st.lists(st.integers(1, 4), min_size=7, max_size=7))
@settings(deadline=None)
def test_a_worker_collects_what_a_partial_would_keep(sent: list[Sent], sizes: list[int]) -> None:
    as_trained = [
        replace(
            s,
            state={**s.state, "half": model()["half"]},
            tally=Tally().add(s.weight, 0, round(s.tally.loss / 2**32)),
        )
        for s in sent
    ]
    collection = Collection(ROLES, lambda index: f"client_{index}")
    found = collected(collection, as_trained, sizes)
    assert everything(found) == everything(union_of(as_trained))
    assert everything(collection.take()) == everything(union_of([]))
