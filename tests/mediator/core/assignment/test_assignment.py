"""Every client has one site, whatever happens to sites, and finding it costs nothing."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.mediator import Assignment, SiteCapacity
from fedpilot.mediator.core.assignment import (
    STRATEGIES,
    NotAssignable,
    Share,
    assign,
    joined,
    reassigned,
    rebalanced,
    size,
)
from fedpilot.mediator.core.assignment.changes.moving import MOVES_KEPT
from fedpilot.mediator.core.assignment.shares import picked, rest

sites = st.lists(
    st.builds(SiteCapacity, st.text("abcdef", min_size=1, max_size=3), st.integers(1, 50)),
    min_size=1,
    max_size=8,
    unique_by=lambda site: site.name,
)
FREE = [strategy for strategy in STRATEGIES if strategy not in ("data_affinity", "pinned")]
"""Strategies for clients whose data is nowhere in particular, and that need no labels."""
A_B = [SiteCapacity("a", 1), SiteCapacity("b", 3)]


def members(share: Share) -> list[int]:
    return [index for indices in share for index in indices]


def everybody(assignment: Assignment) -> list[int]:
    return sorted(i for share in assignment.shares.values() for i in members(share))


@st.composite
def pinnings(draw: st.DrawFn) -> tuple[int, list[SiteCapacity], dict[str, list[range]]]:
    """A population, sites, and which of its clients stay at which site, some of them absent."""
    population = draw(st.integers(0, 120))
    there = draw(sites)
    names = [site.name for site in there] + ["elsewhere"]
    cuts = sorted(draw(st.lists(st.integers(0, population), max_size=8)))
    pinned: dict[str, list[range]] = {}
    for start, stop in zip(cuts[::2], cuts[1::2], strict=False):
        pinned.setdefault(draw(st.sampled_from(names)), []).append(range(start, stop))
    return population, there, pinned


# -- strategies -------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", FREE)
@given(case=pinnings())
def test_every_client_has_exactly_one_site(
    strategy: str, case: tuple[int, list[SiteCapacity], dict[str, list[range]]]
) -> None:
    population, there, pinned = case
    assignment = assign(strategy, population, there, pinned)
    assert set(assignment.movable) == {site.name for site in there}
    assert everybody(assignment) == list(range(population))
    assert assignment.population == population
    for site, share in assignment.shares.items():
        for index in members(share):
            assert assignment.site_of(index) == site
    for site, ranges in pinned.items():
        for index in members(tuple(ranges)):
            assert assignment.site_of(index) == site
            assert "may not move" in assignment.explain(index)


@pytest.mark.parametrize("strategy", FREE)
@settings(max_examples=settings().max_examples // 3)
@given(population=st.integers(0, 10**6), given_sites=sites, seed=st.integers())
def test_the_order_of_sites_does_not_matter(
    strategy: str, population: int, given_sites: list[SiteCapacity], seed: int
) -> None:
    shuffled = random.Random(seed).sample(given_sites, len(given_sites))
    assert assign(strategy, population, shuffled) == assign(strategy, population, given_sites)


@given(population=st.integers(0, 10**6), given_sites=sites)
def test_capacity_gives_each_site_its_share_to_within_one_client(
    population: int, given_sites: list[SiteCapacity]
) -> None:
    shares = assign("capacity", population, given_sites).shares
    total = sum(site.vnodes for site in given_sites)
    for site in given_sites:
        low = population * site.vnodes // total
        assert low <= size(shares[site.name]) <= low + 1


@given(population=st.integers(0, 10**6), given_sites=sites)
def test_round_robin_gives_everybody_the_same_to_within_one_client(
    population: int, given_sites: list[SiteCapacity]
) -> None:
    sizes = [
        size(share) for share in assign("round_robin", population, given_sites).shares.values()
    ]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("strategy", "shares"),
    [
        pytest.param("capacity", {"a": (range(3),), "b": (range(3, 10),)}, id="in proportion"),
        pytest.param(
            "round_robin", {"a": (range(0, 10, 2),), "b": (range(1, 10, 2),)}, id="in turn"
        ),
    ],
)
def test_ten_clients_on_two_sites(strategy: str, shares: dict[str, Share]) -> None:
    given_sites = [SiteCapacity("b", 7), SiteCapacity("a", 3)]
    assert assign(strategy, 10, given_sites).shares == shares


def test_residency_comes_first_and_the_others_fill_up() -> None:
    assignment = assign("capacity", 10, A_B, {"a": [range(4, 6)], "away": [range(9, 10)]})
    assert assignment.shares == {
        "a": (range(2), range(4, 6)),
        "away": (range(9, 10),),
        "b": (range(2, 4), range(6, 9)),
    }


def test_pinned_wants_every_client_to_be_somewhere() -> None:
    ranges = {"a": [range(4)], "b": [range(4, 10)]}
    assert assign("pinned", 10, A_B, ranges).shares == {"a": (range(4),), "b": (range(4, 10),)}
    with pytest.raises(NotAssignable, match="6 clients have none"):
        assign("pinned", 10, A_B, {"a": [range(4)]})


@pytest.mark.parametrize(
    "ranges",
    [
        pytest.param([range(3), range(2, 5)], id="a client at two places"),
        pytest.param([range(8, 11)], id="beyond the population"),
        pytest.param([range(-1, 2)], id="below it"),
        pytest.param([range(0, 6, 2)], id="with gaps"),
    ],
)
def test_pinned_ranges_that_make_no_sense_are_refused(ranges: list[range]) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        assign("capacity", 10, A_B, {"a": ranges})


@pytest.mark.parametrize("strategy", ["capacity", "round_robin"])
def test_a_population_beyond_all_memory_is_assigned_as_well(strategy: str) -> None:
    assignment = assign(strategy, 10**15, A_B)
    assert assignment.population == 10**15
    assert assignment.site_of(10**15 - 1) == "b"
    assert reassigned(assignment, "b", A_B).site_of(10**15 - 1) == "a"


@pytest.mark.parametrize("strategy", FREE)
@pytest.mark.parametrize("index", [10, 11, -1])
def test_a_client_outside_the_population_has_no_site(strategy: str, index: int) -> None:
    with pytest.raises(IndexError):
        assign(strategy, 10, A_B).site_of(index)


def test_there_is_no_strategy_of_that_name() -> None:
    with pytest.raises(KeyError):
        assign("by_moonlight", 10, [SiteCapacity("a", 1)])


# -- sites that are lost and come back --------------------------------------------------------


@pytest.mark.parametrize("strategy", FREE)
@given(case=pinnings(), events=st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=12))
def test_whatever_sites_do_it_stays_a_partition_and_only_their_own_clients_move(
    strategy: str,
    case: tuple[int, list[SiteCapacity], dict[str, list[range]]],
    events: list[tuple[bool, int]],
) -> None:
    population, there, pinned = case
    assignment = assign(strategy, population, there, pinned)
    present = {site.name: site for site in there}
    for number, (leaves, which) in enumerate(events):
        site = there[which % len(there)]
        before = owners(assignment)
        if leaves:
            present.pop(site.name, None)
            capacities = list(present.values())
            assignment = reassigned(assignment, site.name, capacities, round_number=number)
            touched = {i for i, at in before.items() if at == site.name}
        else:
            present[site.name] = site
            capacities = list(present.values())
            assignment = rebalanced(assignment, site.name, capacities, 0.25, round_number=number)
            touched = {i for i, at in owners(assignment).items() if at == site.name}
            gained = [i for i in touched if before[i] != site.name]
            movable = sum(map(size, assignment.movable.values()))
            assert len(gained) <= max(1, movable // 4)
        after = owners(assignment)
        assert everybody(assignment) == list(range(population))
        assert {i for i in after if after[i] != before[i]} <= touched
        for site_name, ranges in pinned.items():
            assert all(after[i] == site_name for i in members(tuple(ranges)))
        if leaves and present:
            assert not assignment.movable.get(site.name)


def owners(assignment: Assignment) -> dict[int, str]:
    return {i: site for site, share in assignment.shares.items() for i in members(share)}


@given(given_sites=sites.filter(lambda s: len(s) > 1), population=st.integers(0, 10**6))
def test_a_lost_sites_clients_go_to_the_others_in_proportion(
    given_sites: list[SiteCapacity], population: int
) -> None:
    before = assign("capacity", population, given_sites)
    lost, *others = given_sites
    after = reassigned(before, lost.name, others)
    homeless = size(before.movable[lost.name])
    total = sum(site.vnodes for site in others)
    for site in others:
        gained = size(after.movable[site.name]) - size(before.movable[site.name])
        low = homeless * site.vnodes // total
        assert low <= gained <= low + 1


def test_the_last_site_that_is_lost_keeps_its_clients_for_its_return() -> None:
    assignment = assign("capacity", 10, [SiteCapacity("a", 1)])
    assert reassigned(assignment, "a", []) == assignment


@given(given_sites=sites.filter(lambda s: len(s) > 1), population=st.integers(0, 10**6))
def test_a_site_that_returns_gets_its_whole_part_back_bit_by_bit(
    given_sites: list[SiteCapacity], population: int
) -> None:
    returned, *others = given_sites
    start = assign("capacity", population, given_sites)
    assignment = reassigned(start, returned.name, others)
    for _ in range(25):
        after = rebalanced(assignment, returned.name, given_sites, 0.1)
        gained = size(after.movable[returned.name]) - size(assignment.movable[returned.name])
        assert 0 <= gained <= max(1, population // 10)
        assignment = after
    assert size(assignment.movable[returned.name]) == size(start.movable[returned.name])
    assert rebalanced(assignment, returned.name, given_sites, 0.1) is assignment


def test_after_round_robin_every_site_gets_the_same_back() -> None:
    three = [*A_B, SiteCapacity("c", 20)]
    assignment = reassigned(assign("round_robin", 12, three), "c", A_B)
    for _ in range(12):
        assignment = rebalanced(assignment, "c", three, 0.1)
    assert size(assignment.movable["c"]) == 4


def test_a_site_that_was_never_there_is_given_work_too() -> None:
    three = [*A_B, SiteCapacity("new", 4)]
    assignment = rebalanced(assign("capacity", 80, A_B), "new", three, 1.0)
    assert {site: size(share) for site, share in assignment.shares.items()} == {
        "a": 10, "b": 30, "new": 40
    }  # fmt: skip


# -- explaining -------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", FREE)
def test_every_choice_is_explained(strategy: str) -> None:
    text = assign(strategy, 10, [SiteCapacity("a", 1), SiteCapacity("b", 4)]).explain(9)
    for word in (strategy, "site b", "of 10"):
        assert word in text


def test_the_explanation_tells_where_a_client_has_been() -> None:
    assignment = assign("capacity", 10, A_B)
    assignment = reassigned(
        assignment, "b", A_B[:1], round_number=7, reason="which was lost: silent for 20 s"
    )
    assignment = rebalanced(assignment, "b", A_B, 1.0, round_number=9)
    assert assignment.explain(9) == (
        "strategy 'capacity' gave site b 7 of 10 clients, this one among them; "
        "was at site b until round 7, which was lost: silent for 20 s; "
        "was at site a until round 9, when site b had returned"
    )
    assert "until" not in assignment.explain(0)


def test_the_history_does_not_grow_for_ever() -> None:
    assignment = assign("capacity", 10, A_B)
    for number in range(MOVES_KEPT):
        assignment = reassigned(assignment, "b", A_B[:1], round_number=number)
        assignment = rebalanced(assignment, "b", A_B, 1.0, round_number=number)
    assert len(assignment.moves) == MOVES_KEPT


# -- shares -----------------------------------------------------------------------------------

strided = st.builds(range, st.integers(0, 60), st.integers(0, 60), st.integers(1, 5))


@given(
    ranges=st.lists(strided, max_size=5),
    places=st.builds(range, st.integers(0, 80), st.integers(0, 80), st.integers(1, 6)),
)
def test_places_of_a_share_count_through_its_ranges(ranges: list[range], places: range) -> None:
    disjoint: list[range] = []
    for each in ranges:
        if not {i for other in disjoint for i in other} & set(each):
            disjoint.append(each)
    clients = members(tuple(disjoint))
    expected = sorted(clients[place] for place in places if place < len(clients))
    assert sorted(members(picked(disjoint, places))) == expected


@given(pieces=st.lists(st.integers(0, 30), max_size=10))
def test_equal_shares_are_written_alike(pieces: list[int]) -> None:
    cuts = sorted({0, *pieces, 31})
    parts = [range(start, stop) for start, stop in itertools.pairwise(cuts)]
    assert joined(parts) == joined(reversed(parts)) == (range(31),)


def test_nothing_taken_leaves_everybody() -> None:
    nothing: Mapping[str, list[range]] = {}
    assert rest(5, nothing.get("a", [])) == (range(5),)
    assert rest(0, []) == ()
