"""Every client has one site, whatever the strategy, and finding it costs nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from fedpilot.mediator import SiteCapacity
from fedpilot.mediator.core.assignment import STRATEGIES, assign

sites = st.lists(
    st.builds(SiteCapacity, st.text("abcdef", min_size=1, max_size=3), st.integers(1, 50)),
    min_size=1,
    max_size=8,
    unique_by=lambda site: site.name,
)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(population=st.integers(0, 500), given_sites=sites)
def test_every_client_has_exactly_one_site(
    strategy: str, population: int, given_sites: list[SiteCapacity]
) -> None:
    assignment = assign(strategy, population, given_sites)
    assert set(assignment.ranges) == {site.name for site in given_sites}
    everybody = sorted(i for indices in assignment.ranges.values() for i in indices)
    assert everybody == list(range(population))
    for site, indices in assignment.ranges.items():
        for index in indices:
            assert assignment.site_of(index) == site


@pytest.mark.parametrize("strategy", STRATEGIES)
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
    ranges = assign("capacity", population, given_sites).ranges
    total = sum(site.vnodes for site in given_sites)
    for site in given_sites:
        low = population * site.vnodes // total
        assert low <= len(ranges[site.name]) <= low + 1


@given(population=st.integers(0, 10**6), given_sites=sites)
def test_round_robin_gives_everybody_the_same_to_within_one_client(
    population: int, given_sites: list[SiteCapacity]
) -> None:
    sizes = [len(r) for r in assign("round_robin", population, given_sites).ranges.values()]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("strategy", "ranges"),
    [
        pytest.param("capacity", {"a": range(3), "b": range(3, 10)}, id="in proportion"),
        pytest.param("round_robin", {"a": range(0, 10, 2), "b": range(1, 10, 2)}, id="in turn"),
    ],
)
def test_ten_clients_on_two_sites(strategy: str, ranges: dict[str, range]) -> None:
    given_sites = [SiteCapacity("b", 7), SiteCapacity("a", 3)]
    assert assign(strategy, 10, given_sites).ranges == ranges


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_population_beyond_all_memory_is_assigned_as_well(strategy: str) -> None:
    assignment = assign(strategy, 10**15, [SiteCapacity("a", 1), SiteCapacity("b", 3)])
    assert sum(len(r) for r in assignment.ranges.values()) == 10**15
    assert assignment.site_of(10**15 - 1) == "b"


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("index", [10, 11, -1])
def test_a_client_outside_the_population_has_no_site(strategy: str, index: int) -> None:
    with pytest.raises(IndexError):
        assign(strategy, 10, [SiteCapacity("a", 1), SiteCapacity("b", 1)]).site_of(index)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_choice_is_explained(strategy: str) -> None:
    text = assign(strategy, 10, [SiteCapacity("a", 1), SiteCapacity("b", 4)]).explain(9)
    for word in (strategy, "site b", "of 10"):
        assert word in text


def test_there_is_no_strategy_of_that_name() -> None:
    with pytest.raises(KeyError):
        assign("by_moonlight", 10, [SiteCapacity("a", 1)])
