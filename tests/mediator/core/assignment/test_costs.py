"""What a round costs is what its rules say, counted one client after another."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.mediator.core.assignment import (
    Exchange,
    RoundCost,
    RoundWork,
    SiteCapacity,
    assign,
    places_of,
    round_cost,
)
from fedpilot.mediator.core.assignment.costs import Resource, SiteLoads, cost_of
from fedpilot.mediator.core.links import LinkSpeed

known = st.none() | st.floats(0.01, 1e6)
Edges = list[tuple[int, int]]


@st.composite
def capacities(draw: st.DrawFn) -> list[SiteCapacity]:
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True))
    return [
        SiteCapacity(
            name,
            draw(st.integers(0, 20)),
            draw(known),
            LinkSpeed(up=draw(known), down=draw(known), round_trip_s=draw(known)),
        )
        for name in names
    ]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], list[SiteCapacity], RoundWork, Edges | None, bool]:
    """Places, sites, work, the edges of a graph (None: a star), and whether they are directed."""
    sites, clients = draw(capacities()), draw(st.integers(1, 30))
    places = draw(st.lists(st.integers(0, len(sites) - 1), min_size=clients, max_size=clients))
    client, samples = st.integers(0, clients - 1), st.integers(0, 1000)
    work = RoundWork(
        samples=draw(
            st.none() | st.lists(samples, min_size=clients, max_size=clients).map(np.array)
        ),
        trained=draw(st.floats(0, 1)),
        model_bytes=draw(st.integers(0, 10**9)),
        sum_bytes=draw(st.integers(0, 10**9)),
        update_bytes=draw(st.integers(0, 10**6)),
        mixing_steps=draw(st.integers(1, 4)),
    )
    edges = draw(st.none() | st.lists(st.tuples(client, client), max_size=90))
    return places, sites, work, edges, draw(st.booleans())


def exchange(edges: Edges, *, directed: bool) -> Exchange:
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    made = Exchange.directed if directed else Exchange.between
    return made(ends[:, 0], ends[:, 1])


def by_hand(
    places: list[int],
    sites: list[SiteCapacity],
    work: RoundWork,
    edges: Edges | None,
    directed: bool,
) -> float:
    """The seconds of a round, by its rules."""
    crossing = set()
    for one, other in edges or ():
        for giver, receiver in [(one, other)] if directed else [(one, other), (other, one)]:
            if places[giver] != places[receiver]:
                crossing.add((giver, places[receiver]))
    paces = sorted(s.seconds_per_sample for s in sites if s.seconds_per_sample is not None)
    middle = len(paces) // 2
    usual = (paces[middle] + paces[~middle]) / 2 if paces else 0.0
    alone = len(set(places)) == 1
    trips = [site.link.round_trip_s or 0.0 for site in sites]
    amounts = Counter((places[giver], target) for giver, target in crossing)
    left: dict[int, float] = {}
    for at in set(places):
        many = sum(n for (giver, _), n in amounts.items() if giver == at)
        up = sites[at].link.up or math.inf
        left[at] = (0.0 if alone else trips[at]) + many * work.model_bytes / up
    slowest = dict.fromkeys(["training", "exchange", "mixing"], 0.0)
    for at, site in enumerate(sites):
        mine = [client for client, place in enumerate(places) if place == at]
        if not mine:
            continue
        samples = 0 if work.samples is None else sum(int(work.samples[c]) for c in mine)
        pace = usual if site.seconds_per_sample is None else site.seconds_per_sample
        compute = samples * work.trained * pace / max(1, site.vnodes)
        up, down = site.link.up or math.inf, site.link.down or math.inf
        trip, steps = site.link.round_trip_s or 0.0, work.mixing_steps
        answer = (work.sum_bytes + work.update_bytes * work.trained * len(mine)) / up
        training = trip + work.model_bytes / down + compute
        if edges is None:
            slowest["training"] = max(slowest["training"], training + answer)
            continue
        taken = 0.0
        for giver in sorted(left, key=lambda giver: left[giver]):
            if many := amounts[giver, at]:
                taken = max(taken, left[giver]) + many * work.model_bytes / down
        told = trip if taken or any(target == at for _, target in amounts) else 0.0
        times = {
            "training": training,
            "exchange": steps * max(left[at], taken + told),
            "mixing": steps * trip + answer,
        }
        slowest = {name: max(slowest[name], times[name]) for name in slowest}
    return sum(slowest.values())


def cost(
    places: list[int],
    sites: list[SiteCapacity],
    work: RoundWork,
    edges: Edges | None,
    directed: bool,
) -> RoundCost:
    among = None if edges is None else exchange(edges, directed=directed)
    return round_cost(np.array(places), sites, work, among)


@settings(max_examples=settings().max_examples // 3)
@given(cases())
def test_a_rounds_seconds_are_those_of_its_slowest_sites(
    case: tuple[list[int], list[SiteCapacity], RoundWork, Edges | None, bool],
) -> None:
    found = cost(*case)
    assert found.seconds == pytest.approx(by_hand(*case))
    assert sum(phase.seconds for phase in found.phases) == found.seconds
    assert found.bound_by.seconds == max(phase.seconds for phase in found.phases)


@settings(max_examples=settings().max_examples // 3)
@given(cases())
def test_what_crosses_leaves_one_site_and_reaches_another(
    case: tuple[list[int], list[SiteCapacity], RoundWork, Edges | None, bool],
) -> None:
    places, _, work, _, _ = case
    found = cost(*case)
    assert sum(site.models_up for site in found.sites) == found.crossing_models
    assert sum(site.models_down for site in found.sites) == found.crossing_models
    assert sum(site.clients for site in found.sites) == len(places)
    there = sum(site.clients > 0 for site in found.sites)
    down = sum(site.bytes_down for site in found.sites)
    assert down == (found.crossing_models + there) * work.model_bytes


@settings(max_examples=settings().max_examples // 3)
@given(cases())
def test_the_order_of_sites_and_edges_does_not_matter(
    case: tuple[list[int], list[SiteCapacity], RoundWork, Edges | None, bool],
) -> None:
    places, sites, work, edges, directed = case
    turned = [len(sites) - 1 - place for place in places]
    backwards = None if edges is None else edges[::-1]
    found, again = cost(*case), cost(turned, sites[::-1], work, backwards, directed)
    assert again.seconds == pytest.approx(found.seconds)
    assert again.sites[::-1] == found.sites


def test_the_order_of_sites_does_not_decide_how_seconds_round() -> None:
    """Thirds of seconds that are added up in two orders differ in their last bit."""
    third = LinkSpeed(up=3.0, down=3.0, round_trip_s=0.0)
    sites = [SiteCapacity(name, 1, 0.0, third) for name in "abcdefgh"]
    work = RoundWork(samples=None, model_bytes=1, sum_bytes=0)
    places = [0, 0, 1, 1, 2, 3, 4, 5, 6, 7]
    edges = [(place, 9) for place in range(9)]
    found = cost(places, sites, work, edges, True)
    again = cost([7 - place for place in places], sites[::-1], work, edges, True)
    assert again.sites[::-1] == found.sites


SLOW = SiteCapacity("b", 2, 0.02, LinkSpeed(up=1e6, down=1e7, round_trip_s=0.1))
FAST = SiteCapacity("a", 4, 0.01, LinkSpeed(up=1e7, down=1e8, round_trip_s=0.1))
SEVEN = RoundWork(samples=np.full(7, 100), model_bytes=2_000_000, sum_bytes=4_000_000)
"""Seven clients, of which 0 to 3 are at `a`."""
PLACES = np.array([0, 0, 0, 0, 1, 1, 1])


def test_a_model_crosses_once_to_each_site_that_needs_it() -> None:
    """Client 0 has three neighbors at b, and each of them has it alone at a."""
    found = round_cost(
        PLACES, [FAST, SLOW], SEVEN, exchange([(0, 4), (0, 5), (6, 0)], directed=False)
    )
    a, b = found.sites
    assert (a.models_up, a.models_down, b.models_up, b.models_down) == (1, 3, 3, 1)
    assert found.crossing_models == 4
    assert (b.bytes_up, b.bytes_down) == (3 * 2_000_000 + 4_000_000, 2 * 2_000_000)
    assert found.phases[1].name == "exchange"
    assert found.phases[1].seconds == pytest.approx(0.1 + 6.0 + 0.1 + 0.06)
    assert (found.phases[1].site, found.phases[1].resource) == ("b", Resource.UP)
    assert found.bound_by == found.phases[1]
    assert str(found).endswith("bound by the link up of site b")


BOTH = exchange([(0, 4), (1, 5), (2, 6)], directed=False)
"""Three models from each of two sites to the other."""


@pytest.mark.parametrize(
    ("up", "down", "seconds", "held_up_by"),
    [
        pytest.param(
            (1e9, 5e5),
            (1e9, 1e6),
            12.0,
            ("b", Resource.UP),
            id="both ways of one slow link overlap",
        ),
        pytest.param(
            (1e9, 1e6), (1e9, 5e5), 12.0, ("b", Resource.DOWN), id="the slower way of it counts"
        ),
        pytest.param(
            (1e6, 1e6), (2e6, 2e6), 9.0, ("a", Resource.UP), id="nothing to take before all gave"
        ),
        pytest.param(
            (1e6, 1e9), (3e6, 1e9), 6.0, ("a", Resource.UP), id="others wait for a slow link up"
        ),
    ],
)
def test_models_go_down_as_soon_as_they_have_come_up(
    up: tuple[float, float],
    down: tuple[float, float],
    seconds: float,
    held_up_by: tuple[str, Resource],
) -> None:
    there = [
        SiteCapacity(n, 1, None, LinkSpeed(up=up[i], down=down[i])) for i, n in enumerate("ab")
    ]
    phase = round_cost(PLACES, there, replace(SEVEN, sum_bytes=0), BOTH).phases[1]
    assert phase.seconds == pytest.approx(seconds, rel=0.01)
    assert (phase.site, phase.resource) == held_up_by


def test_models_of_two_sites_share_the_link_down() -> None:
    """Those of `a` are there after 6 s, and those of `b` after 12 s."""
    links = [LinkSpeed(up=1e6), LinkSpeed(up=5e5), LinkSpeed(down=5e5)]
    there = [SiteCapacity(n, 1, None, link) for n, link in zip("abc", links, strict=True)]
    places, among = (
        np.repeat([0, 1, 2], 3),
        exchange([(n, 6 + n % 3) for n in range(6)], directed=True),
    )
    work = RoundWork(model_bytes=2_000_000)
    phase = round_cost(places, there, work, among).phases[1]
    assert phase.seconds == pytest.approx(max(6 + 24, 12 + 12))


def test_a_directed_edge_carries_one_model() -> None:
    found = round_cost(PLACES, [FAST, SLOW], SEVEN, exchange([(4, 0), (5, 0)], directed=True))
    assert [(site.models_up, site.models_down) for site in found.sites] == [(0, 2), (2, 0)]


def test_each_mixing_step_moves_the_models_again() -> None:
    among = exchange([(0, 4)], directed=False)
    found = round_cost(PLACES, [FAST, SLOW], replace(SEVEN, mixing_steps=3), among)
    assert found.crossing_models == 6


def test_partial_sums_take_bytes_of_their_own_in_the_place_of_models() -> None:
    work = replace(SEVEN, mixing_steps=2, state_bytes=1_000_000, partial_bytes=3_000_000)
    crossing, sums = np.array([[0, 1], [0, 0]]), np.array([[0, 0], [2, 0]])
    load = SiteLoads(np.array([4, 3]), np.array([400, 300]), crossing, sums)
    found = cost_of(load, [FAST, SLOW], work, samples_known=True)
    a, b = found.sites
    assert (found.crossing_models, found.crossing_sums) == (2, 4)
    assert (a.models_up, a.models_down, a.sums_up, a.sums_down) == (2, 0, 0, 4)
    assert (b.models_up, b.models_down, b.sums_up, b.sums_down) == (0, 2, 4, 0)
    assert (a.bytes_up, a.bytes_down) == (2_000_000 + 4_000_000, 12_000_000 + 2_000_000)
    assert (b.bytes_up, b.bytes_down) == (12_000_000 + 4_000_000, 2_000_000 + 2_000_000)
    assert found.phases[1].seconds == pytest.approx(0.2 + 12.0 + 0.2 + 0.12)


def test_in_a_star_sites_do_not_wait_for_each_other_before_their_answer() -> None:
    found = round_cost(PLACES, [FAST, SLOW], SEVEN, None)
    assert len(found.phases) == 1
    assert found.seconds == pytest.approx(0.1 + 0.2 + 300 * 0.02 / 2 + 4.0)
    assert found.sites[1].seconds[Resource.COMPUTE] == pytest.approx(3.0)


def test_a_site_without_clients_takes_no_part() -> None:
    found = round_cost(np.zeros(7, dtype=np.int64), [FAST, SLOW], SEVEN, None)
    assert found.phases[0].site == "a"
    assert found.sites[1].bytes_up == found.sites[1].bytes_down == 0


def test_what_is_not_known_is_named() -> None:
    there = [SiteCapacity("a", 1, 0.5, LinkSpeed(up=1.0)), SiteCapacity("b", 1)]
    found = round_cost(np.array([0, 1]), there, RoundWork(), None)
    assert found.unknown == (
        "clients' samples: training counts as free",
        "the pace of site b: counts as the median of the others",
        "the link up of site b: counts as free",
        "the link down of all sites: counts as free",
        "the round trips of all sites: count as free",
    )
    assert str(found) == "0 s, as far as is known"


def test_an_assignments_shares_are_places_among_the_sites() -> None:
    there = [SiteCapacity("b", 1), SiteCapacity("a", 1)]
    shares = assign("round_robin", 5, there).shares
    assert places_of(shares, there, 5).tolist() == [1, 0, 1, 0, 1]
