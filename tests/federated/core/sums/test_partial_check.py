"""What a site hands up is added only if it can be what it was asked for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.population.cohort_members import Members, Membership
from fedpilot.federated.core.population.partitions.client_ids import PatternIds
from fedpilot.federated.core.population.shares import packed
from fedpilot.federated.core.state import TensorRole
from fedpilot.federated.core.sums.amounts import AnswerRefused
from fedpilot.federated.core.sums.partial import Partial, Reference, Tally, grid
from fedpilot.federated.core.sums.partial_check import (
    checked_covered,
    checked_judges,
    checked_partial,
    checked_tally,
)

MODEL = {
    "w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
    "b": np.zeros(3, np.float32),
    "steps": np.array(4),
}
ROLES = {"w": TensorRole.TRAINED, "b": TensorRole.TRAINED, "steps": TensorRole.COUNTER}
IDS = PatternIds("client_{index}", 20)
WHOLE = np.array([0, 1, 2, 9])
"""The cohort; client 9 is another site's."""
MEMBERS = Members(
    mask=np.array([True, True, True, False]),
    clients=WHOLE[:3],
    index_of=IDS.index_of,
    each_once=True,
)
Header = dict[str, Any]
Tensors = dict[str, np.ndarray[Any, Any]]


def handed_up(*, updates: bool = False) -> tuple[Header, Tensors]:
    """An honest answer about two clients, one of them refused."""
    partial = Partial.keeping_updates() if updates else Partial(grid(MODEL, ROLES))
    reference = Reference.of(MODEL, ROLES)
    moved = {"w": MODEL["w"] + 0.5, "b": MODEL["b"] - 0.25, "steps": np.array(9)}
    assert partial.add("client_0", moved, 7, Tally(7, 3, 100, 0), reference)
    bad = {**moved, "w": MODEL["w"] * np.float32(np.nan)}
    assert not partial.add("client_1", bad, 7, Tally(7, 3, 100, 0), reference)
    told, tensors = partial.to_wire()
    digests = {"client_0": {"w": "ab" * 8, "b": "cd" * 8}}
    header = {"partial": told, "training_seconds": 0.5, "busy_seconds": 0.6, "digests": digests}
    return header, tensors


def check(
    header: Header,
    tensors: Tensors,
    *,
    updates: bool = False,
    all_of_them: bool = False,
    members: Members = MEMBERS,
) -> Partial:
    return checked_partial(
        header,
        tensors,
        exponents=grid(MODEL, ROLES),
        model=MODEL,
        roles=ROLES,
        members=members,
        all_of_them=all_of_them,
        keeps_updates=updates,
    )


@pytest.mark.parametrize("updates", [False, True])
def test_an_honest_one_is_what_it_was(updates: bool) -> None:
    header, tensors = handed_up(updates=updates)
    partial = check(header, tensors, updates=updates)
    again, same = partial.to_wire()
    assert again == header["partial"]
    assert set(same) == set(tensors)
    assert all(np.array_equal(same[name], tensors[name]) for name in same)


def test_nobody_at_all_is_honest_too() -> None:
    told, tensors = Partial(grid(MODEL, ROLES)).to_wire()
    header = {"partial": told, "training_seconds": 0.0, "busy_seconds": 0.0, "digests": {}}
    assert check(header, tensors).clients == 0


def told(change: Callable[[Header], Any]) -> Callable[[Header, Tensors], Any]:
    return lambda header, tensors: change(header["partial"])


LIES: dict[str, Callable[[Header, Tensors], Any]] = {
    "no partial": lambda h, t: h.pop("partial"),
    "a list for a partial": lambda h, t: h.update(partial=[]),
    "a wrong shape": lambda h, t: t.update({"sum/w": t["sum/w"].T}),
    "floats for a sum": lambda h, t: t.update({"sum/w": t["sum/w"].astype(float)}),
    "a sum too little": lambda h, t: t.pop("sum/w"),
    "a sum too many": lambda h, t: t.update({"sum/x": t["sum/w"]}),
    "a tensor of another kind": lambda h, t: t.update({"evil": t["sum/w"]}),
    "a sum beyond its bound": lambda h, t: t.update({"sum/w": t["sum/w"] * 2}),
    "the least integer": lambda h, t: t.update({"sum/w": np.full((2, 3), np.iinfo(np.int64).min)}),
    "a counter of another shape": lambda h, t: t.update({"max/steps": np.zeros(3, np.int64)}),
    "a counter that is none": lambda h, t: t.update({"max/w": MODEL["w"]}),
    "another grid": told(lambda p: p["exponents"].update(w=3)),
    "a grid too little": told(lambda p: p["exponents"].pop("w")),
    "a bound too little": told(lambda p: p["bounds"].pop("b")),
    "a negative bound": told(lambda p: p["bounds"].update(w="-5")),
    "a bound without end": told(lambda p: p["bounds"].update(w="9" * 1000)),
    "a bound that is a number": told(lambda p: p["bounds"].update(w=5)),
    "a bound of nothing": told(lambda p: p["bounds"].update(x="5")),
    "more clients than were asked": told(lambda p: p.update(clients=3)),
    "a negative number of clients": told(lambda p: p.update(clients=-1)),
    "half a client": told(lambda p: p.update(clients=0.5)),
    "true as a weight": told(lambda p: p.update(weight=True)),
    "a weight without end": told(lambda p: p.update(weight=1 << 70)),
    "refused clients that are numbers": told(lambda p: p.update(refused=[1])),
    "an id without end": told(lambda p: p.update(refused=["x" * 10_000])),
    "a tally of three": told(lambda p: p.update(tally=[1, 2, 3])),
    "more right than there are": told(lambda p: p.update(tally=[7, 8, 1, 0])),
    "a loss that is not finite": told(lambda p: p.update(tally=[7, 3, float("nan"), 0])),
    "updates where sums are wanted": told(lambda p: p.update(updates=[])),
    "seconds that are not finite": lambda h, t: h.update(training_seconds=float("nan")),
    "seconds that are text": lambda h, t: h.update(busy_seconds="long"),
    "another's client refused": told(lambda p: p.update(refused=["client_9"])),
    "no digests": lambda h, t: h.pop("digests"),
    "a list of digests": lambda h, t: h.update(digests=[]),
    "digests of another's client": lambda h, t: h["digests"].update(client_9={"w": "ab"}),
    "digests of nobody": lambda h, t: h["digests"].update(nobody={"w": "ab"}),
    "a digest that is a number": lambda h, t: h["digests"].update(client_0={"w": 5}),
    "a digest without end": lambda h, t: h["digests"].update(client_0={"w": "ab" * 999}),
    "digests of another model": lambda h, t: h["digests"].update(client_0={"x": "ab"}),
    "one digest for a client": lambda h, t: h["digests"].update(client_0="ab"),
    "more weight than its tally": told(lambda p: p.update(weight=10**15)),
    "less weight than its tally": told(lambda p: p.update(weight=1)),
    "samples that are not finite": told(lambda p: p.update(tally=[7, 3, 100, 1])),
    "a bound that no float reaches": told(lambda p: p["bounds"].update(w=str(1 << 170))),
    "a bound above its only client's move": told(lambda p: p["bounds"].update(w=str(1 << 61))),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_lie_is_refused(lie: Callable[[Header, Tensors], Any]) -> None:
    header, tensors = handed_up()
    header, tensors = copy.deepcopy(header), dict(tensors)
    lie(header, tensors)
    with pytest.raises(AnswerRefused, match="its answer is refused"):
        check(header, tensors)


LIES_OF_UPDATES: dict[str, Callable[[Header, Tensors], Any]] = {
    "one that is not finite": lambda h, t: t.update({"all/w": t["all/w"] * np.float32(np.inf)}),
    "of another shape": lambda h, t: t.update({"all/w": t["all/w"][:, :1]}),
    "of another type": lambda h, t: t.update({"all/w": t["all/w"].astype(np.float64)}),
    "of one tensor less": lambda h, t: t.pop("all/b"),
    "one client twice": told(lambda p: p.update(clients=2, updates=p["updates"] * 2)),
    "fewer than clients": told(lambda p: p.update(updates=[])),
    "a row that is none": told(lambda p: p.update(updates=[["client_0"]])),
    "a negative weight": told(lambda p: p["updates"][0].__setitem__(1, -1)),
    "of another's client": told(lambda p: p["updates"][0].__setitem__(0, "client_9")),
    "of nobody": told(lambda p: p["updates"][0].__setitem__(0, "nobody")),
    "refused as well": told(lambda p: p.update(refused=["client_0"])),
    "of another weight in all": told(lambda p: p.update(weight=8)),
    "of a weight that is not measured": told(
        lambda p: (p["updates"][0].__setitem__(1, 9), p.update(weight=9))
    ),
    "of samples that are not finite": told(lambda p: p["updates"][0].__setitem__(5, 1)),
}


@pytest.mark.parametrize("lie", LIES_OF_UPDATES.values(), ids=LIES_OF_UPDATES)
def test_a_lie_among_updates_is_refused(lie: Callable[[Header, Tensors], Any]) -> None:
    header, tensors = handed_up(updates=True)
    header, tensors = copy.deepcopy(header), dict(tensors)
    lie(header, tensors)
    with pytest.raises(AnswerRefused):
        check(header, tensors, updates=True)


HOLDS = np.array([7, 5, -1, 4, 4, 4, 4, 4, 4, 4])
"""Samples by client; of client 2 they are not known."""


def holding(clients: int, **changes: Any) -> Members:
    """The first clients of the cohort, whose samples are known."""
    mask = np.arange(4) < clients
    return replace(
        MEMBERS, mask=mask, clients=WHOLE[mask], samples_of=lambda some: HOLDS[some], **changes
    )


def weighing(samples: int, refused: list[str]) -> Header:
    header, _ = handed_up()
    partial = {**header["partial"], "weight": samples, "tally": [samples, 0, 0, 0]}
    return {**header, "partial": {**partial, "refused": refused}}


@pytest.mark.parametrize(
    ("clients", "samples", "refused", "wanted"),
    [
        pytest.param(2, 7, ["client_1"], None, id="what the clients hold that were not refused"),
        pytest.param(2, 5, ["client_0"], None, id="of the other one"),
        pytest.param(2, 8, ["client_1"], "7", id="more than that"),
        pytest.param(2, 12, ["client_1"], "7", id="with the refused one"),
        pytest.param(2, 5, ["client 1 of 1"], None, id="of either, where one is refused unnamed"),
        pytest.param(2, 12, ["client 1 of 1"], "5 to 7", id="of both, though one is refused"),
        pytest.param(3, 999, ["a", "b"], None, id="anything, where a client does not say"),
    ],
)
def test_a_sum_weighs_what_its_clients_are_declared_to_hold(
    clients: int, samples: int, refused: list[str], wanted: str | None
) -> None:
    _, tensors = handed_up()
    header, members = weighing(samples, refused), holding(clients)
    if wanted is None:
        assert check(header, tensors, all_of_them=True, members=members).weight == samples
        return
    with pytest.raises(AnswerRefused, match=f"wanted {wanted}, the samples that its clients hold"):
        check(header, tensors, all_of_them=True, members=members)


def test_where_a_clock_closes_it_weighs_what_those_hold_that_it_covers() -> None:
    _, tensors = handed_up()
    members = holding(4)
    covering = packed(np.array([0, 1], dtype=np.int64), 4)
    honest = {**weighing(7, ["client_1"]), "covered": covering}
    assert check(honest, tensors, members=members).weight == 7
    with pytest.raises(AnswerRefused, match="wanted 7, the samples"):
        check({**honest, "partial": weighing(9, ["client_1"])["partial"]}, tensors, members=members)


def test_of_groups_it_weighs_no_more_than_all_their_clients() -> None:
    _, tensors = handed_up()
    members = holding(2, each_once=False)
    header = weighing(12, ["client_1"])
    header["partial"]["tally"] = [40, 0, 0, 0]
    assert check(header, tensors, members=members).weight == 12
    header["partial"]["weight"] = 13
    with pytest.raises(AnswerRefused, match="wanted 0 to 12, the samples"):
        check(header, tensors, members=members)


def test_who_is_left_out_without_a_clock_is_missed() -> None:
    header, tensors = handed_up()
    with pytest.raises(AnswerRefused, match="number of clients is 2, wanted 3"):
        check(header, tensors, all_of_them=True)


def covering(places: list[int], of: int = 4) -> Header:
    header, _ = handed_up()
    return {**header, "covered": packed(np.array(places, dtype=np.int64), of)}


def test_who_is_covered_is_who_was_asked_for() -> None:
    assert checked_covered(covering([0, 2]), MEMBERS).tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(handed_up()[0], id="not told"),
        pytest.param({**covering([0]), "covered": 5}, id="a number"),
        pytest.param({**covering([0]), "covered": 10**9}, id="a large number"),
        pytest.param({**covering([0]), "covered": "%%%"}, id="no bitmap"),
        pytest.param({**covering([0]), "covered": "\u20ac"}, id="no ASCII"),
        pytest.param(covering([0, 1], of=40), id="of another cohort"),
        pytest.param(covering([0, 3]), id="with another site's client"),
        pytest.param(covering([0, 1, 2]), id="more than it counts"),
        pytest.param(covering([0]), id="fewer than it counts"),
    ],
)
def test_a_bitmap_that_cannot_be_is_refused(header: Header) -> None:
    with pytest.raises(AnswerRefused, match="`covered`"):
        checked_covered(header, MEMBERS)


@pytest.mark.parametrize("clients", [None, True, -1, 4, 2.0, "3"])
def test_more_judges_than_were_asked_are_refused(clients: object) -> None:
    assert checked_judges({"clients": 3}, 3) == 3
    with pytest.raises(AnswerRefused):
        checked_judges({"clients": clients}, 3)


def test_the_members_of_an_order_are_those_of_the_cohort_in_its_share() -> None:
    membership = Membership(population=20, asked=6, seed=3, index_of=IDS.index_of)
    everybody = membership.of(2, (range(20),))
    assert everybody.most == 6
    assert everybody.clients is not None
    parts = [membership.of(2, (range(start, 20, 2),)) for start in (0, 1)]
    assert [part.most for part in parts] == [
        sum(each % 2 == start for each in everybody.clients.tolist()) for start in (0, 1)
    ]
    assert (parts[0].mask ^ parts[1].mask).all()
    (first, *_) = everybody.clients.tolist()
    counted = everybody.among(np.arange(6) > 0)
    assert counted.most == 5
    assert counted.stranger([f"client_{first}"]) == f"client_{first}"
    assert everybody.stranger([f"client_{first}"]) is None
    assert everybody.stranger(["nobody"], may_be_unknown=True) is None


def test_where_nobody_knows_who_is_in_a_group_anybody_may_be() -> None:
    membership = Membership(population=9, asked=9, seed=3, index_of=IDS.index_of, known=False)
    members = membership.of(1, (range(3),))
    assert members.most == 9
    assert members.stranger(["whoever"]) is None


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.sampled_from(sorted(handed_up()[0]["partial"])), anything)
def test_whatever_stands_in_a_header_is_taken_or_refused(name: str, value: object) -> None:
    header, tensors = handed_up()
    header = copy.deepcopy(header)
    header["partial"][name] = value
    try:
        check(header, tensors)
    except AnswerRefused:
        return
    assert header["partial"][name] == value


@given(anything)
def test_any_tally_is_taken_or_refused(value: object) -> None:
    try:
        tally = checked_tally(value)
    except AnswerRefused:
        return
    assert tally.to_json() == value
