"""What a plan says of a run: who is where, what a round costs, what bounds it, how it is cut."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.federated.core.planning.document import document_of
from fedpilot.federated.core.planning.measured import measured
from fedpilot.federated.core.planning.plan import (
    Known,
    Plan,
    PlanInputs,
    PlannedMemory,
    capacities,
    planned,
)
from fedpilot.federated.core.planning.sites import PlannedSite
from fedpilot.mediator.core.assignment import Exchange, RoundWork, assign
from fedpilot.mediator.core.links import LinkSpeed

STAR = PlanInputs(
    name="star",
    population=10,
    clients_per_round=10,
    rounds=4,
    assignment="capacity",
    work=RoundWork(samples=np.full(10, 6), model_bytes=100, sum_bytes=200),
    mean_samples=None,
    pace=Known(0.5, "a guess"),
    memory=PlannedMemory(chunk_bytes=7, chunk_clients=2, store_bytes=9, model_bytes_of_client=0),
    bytes_source="counted",
)
AROUND = np.arange(10)
RING = replace(
    STAR,
    assignment="locality",
    exchanges=(Exchange.between(AROUND, (AROUND + 1) % 10),),
    memory=replace(STAR.memory, model_bytes_of_client=100),
)
FAST, SLOW = (
    PlannedSite(name="fast", link=LinkSpeed(up=100.0, down=100.0, round_trip_s=0.0)),
    PlannedSite(name="slow", link=LinkSpeed(up=10.0, down=100.0, round_trip_s=0.0), from_="x"),
)
VNODES = {"slow": 1, "fast": 4}


def test_a_site_has_its_clients_its_bytes_and_its_seconds() -> None:
    plan = planned(STAR, [SLOW, FAST], VNODES)
    fast, slow = plan.sites
    assert [s.site for s in plan.sites] == ["fast", "slow"]
    assert (fast.clients, slow.clients, fast.vnodes, slow.vnodes) == (8, 2, 4, 1)
    assert (fast.samples, slow.samples) == (48, 12)
    assert (slow.bytes_in, slow.bytes_out) == (100, 200)
    assert fast.compute_s == pytest.approx(48 * 0.5 / 4)
    assert slow.transfer_s == pytest.approx(100 / 100 + 200 / 10)
    assert plan.seconds == pytest.approx(12 * 0.5 + 1 + 20)
    assert plan.bound is not None
    assert (plan.bound.site, plan.bound.resource) == ("slow", "link up")


def test_the_clients_of_a_star_need_not_be_counted() -> None:
    """A million of them would take seconds, so a site has its part of the mean."""
    counted = planned(replace(STAR, work=replace(STAR.work, trained=0.5)), [SLOW, FAST], VNODES)
    uncounted = replace(STAR.work, samples=None, trained=0.5)
    expected = planned(replace(STAR, work=uncounted, mean_samples=6.0), [SLOW, FAST], VNODES)
    assert expected.sites == counted.sites
    assert expected.seconds == counted.seconds


def test_what_is_not_known_is_said_and_costs_nothing() -> None:
    site = PlannedSite(name="a", link=LinkSpeed(down=100.0))
    plan = planned(replace(STAR, pace=Known(None)), [site], {"a": 1})
    assert (plan.sites[0].compute_s, plan.sites[0].transfer_s) == (None, None)
    assert plan.seconds == 1.0
    assert any("pace" in each for each in plan.unknown)
    nothing = planned(replace(STAR, pace=Known(None)), [], {"a": 1})
    assert (nothing.seconds, nothing.bound) == (None, None)
    assert document_of(nothing)["round"]["seconds"] is None


def test_a_site_of_its_own_pace_has_it() -> None:
    sites = [replace(FAST, seconds_per_sample=0.125), SLOW]
    plan = planned(STAR, sites, VNODES)
    assert [site.seconds_per_sample for site in plan.sites] == [0.125, 0.5]


def test_the_links_that_an_earlier_run_measured_complete_those_that_are_known() -> None:
    told = {"slow": {"link": {"up": 1.0, "down": 50.0, "round_trip_s": 2.0}}}
    earlier = measured("r", (), (), epochs=1, sites=told)
    site = PlannedSite(name="slow", link=LinkSpeed(up=10.0))
    plan = planned(replace(STAR, measured=earlier), [site], {"slow": 1})
    assert plan.sites[0].link == LinkSpeed(up=10.0, down=50.0, round_trip_s=2.0)


def test_a_ring_is_cut_between_its_sites_and_compared_with_round_robin() -> None:
    plan = planned(RING, [SLOW, FAST], {"slow": 1, "fast": 1})
    assert plan.cut is not None
    assert plan.round_robin is not None
    assert (plan.edges, plan.cut.edges, plan.cut.models) == (10, 2, 4)
    assert (plan.round_robin.edges, plan.round_robin.models) == (10, 10)
    assert plan.round_robin.seconds is not None
    assert plan.round_robin.seconds > (plan.cut.seconds or 0)
    assert [site.models_out for site in plan.sites] == [2, 2]
    assert [site.kept_bytes for site in plan.sites] == [500, 500]
    assert "makes a round take" in plan.assignment.reason
    unlinked = planned(RING, [], {"slow": 1, "fast": 1})
    assert "cuts 2 of 10 edges" in unlinked.assignment.reason


def test_a_hub_gets_partial_sums_in_the_place_of_models() -> None:
    """Client 0 exchanges with all; five of them are at the other site."""
    hub = Exchange.between(np.zeros(9, np.int64), np.arange(1, 10))
    work = replace(STAR.work, state_bytes=90, partial_bytes=190)
    inputs = replace(RING, assignment="capacity", exchanges=(hub,), work=work)
    plan = planned(inputs, [SLOW, FAST], {"slow": 1, "fast": 1})
    assert plan.cut is not None
    assert (plan.cut.models, plan.cut.sums, plan.cut.nbytes) == (1, 1, 90 + 190)
    fast, slow = plan.sites
    assert (fast.models_out, fast.sums_in, slow.models_in, slow.sums_out) == (1, 1, 1, 1)
    assert (fast.bytes_in, fast.bytes_out) == (100 + 190, 200 + 90)
    assert (slow.bytes_in, slow.bytes_out) == (100 + 90, 200 + 190)
    document = document_of(plan)
    assert document["graph"]["cut"] == {
        "strategy": "capacity",
        "edges": 5,
        "models": 1,
        "sums": 1,
        "bytes": 280,
        "seconds": document["round"]["seconds"],
    }
    assert (document["sites"][0]["sums_in"], document["sites"][0]["sums_out"]) == (1, 0)


def test_a_graph_that_changes_has_the_means_of_its_rounds() -> None:
    two = tuple(Exchange.directed(AROUND, (AROUND + step) % 10) for step in (1, 5))
    inputs = replace(RING, exchanges=two, lasting=False)
    plan = planned(inputs, [SLOW, FAST], {"slow": 1, "fast": 1})
    assert plan.cut is not None
    assert plan.cut.models == (2 + 10) / 2
    # Across the circle each pair is one edge, with a model in both directions.
    assert plan.cut.edges == (2 + 5) / 2


def test_one_site_cuts_nothing() -> None:
    plan = planned(RING, [FAST], {"fast": 1})
    assert (plan.cut, plan.round_robin, plan.sites[0].models_in) == (None, None, 0)


def test_the_clients_of_a_run_are_where_it_has_put_them() -> None:
    given = assign("capacity", 10, [], {"slow": [range(0, 9)], "fast": [range(9, 10)]})
    plan = planned(STAR, [SLOW, FAST], VNODES, given)
    assert [site.clients for site in plan.sites] == [1, 9]


def test_clients_whose_data_is_at_a_site_that_is_away_stay_there() -> None:
    inputs = replace(STAR, pinned={"away": [range(0, 3)]})
    plan = planned(inputs, [FAST], {"fast": 2})
    assert [(site.site, site.clients, site.pinned, site.vnodes) for site in plan.sites] == [
        ("away", 3, 3, 0),
        ("fast", 7, 0, 2),
    ]


sites = st.dictionaries(
    st.sampled_from("abcdef"),
    st.tuples(st.integers(1, 9), st.sampled_from([None, 1.0, 33.0]), st.sampled_from([None, 0.1])),
    min_size=1,
)


def document(plan: Plan) -> str:
    return json.dumps(document_of(plan))


@settings(max_examples=settings().max_examples // 3)
@given(sites, st.randoms(), st.sampled_from([STAR, RING]))
def test_two_plans_of_one_input_are_equal_whatever_the_order_of_lists(
    made: dict[str, tuple[int, Any, Any]], random: Any, inputs: PlanInputs
) -> None:
    known = [
        PlannedSite(name=name, link=LinkSpeed(up=rate, down=rate), seconds_per_sample=pace)
        for name, (_, rate, pace) in made.items()
    ]
    vnodes = {name: count for name, (count, _, _) in made.items()}
    one = document(planned(inputs, known, vnodes))
    random.shuffle(known)
    names = list(vnodes)
    random.shuffle(names)
    edges = tuple(
        Exchange.between(each.ends[::-1, 1], each.ends[::-1, 0]) for each in inputs.exchanges
    )
    again = planned(replace(inputs, exchanges=edges), known, {name: vnodes[name] for name in names})
    assert document(again) == one


def test_figures_of_a_document_are_whole_or_of_six_digits() -> None:
    found = document_of(planned(STAR, [SLOW, FAST], {"slow": 1, "fast": 3}))
    assert found["sites"][0]["compute_seconds"] == float(f"{8 * 6 * 0.5 / 3:.6g}")
    assert type(found["sites"][0]["bytes_in"]) is int
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_run_that_moves_clients_says_what_it_would_decide_by_the_links_known_now() -> None:
    many, each = np.arange(40), np.full(40, 6)
    moving = replace(
        RING,
        population=40,
        exchanges=(Exchange.between(many, (many + 1) % 40),),
        work=replace(RING.work, samples=each),
        reassign_every=1,
        state_bytes=1,
    )
    sites, vnodes = [SLOW, FAST], {"slow": 1, "fast": 1}
    in_turn = assign("round_robin", 40, capacities(moving, sites, vnodes))
    plan = planned(moving, sites, vnodes, in_turn)
    told = document_of(plan)["reassignment"]
    assert (told["every"], told["verdict"]) == (1, "move")
    assert told["moves"] == [{"from": "slow", "to": "fast", "clients": 1}]
    assert told["saved_seconds"] * 3 > told["moving_seconds"] > 0
    assert "instead of" in told["reason"]


@pytest.mark.parametrize(
    ("changes", "sites"),
    [
        pytest.param({"reassign_every": None}, [SLOW, FAST], id="a run that moves none"),
        pytest.param({"reassign_every": 4}, [SLOW, FAST], id="no round is left at the first time"),
        pytest.param({"reassign_every": 1}, [FAST], id="one site"),
    ],
)
def test_without_a_decision_nothing_is_said_of_it(
    changes: dict[str, Any], sites: list[PlannedSite]
) -> None:
    plan = planned(replace(RING, **changes), sites, {site.name: 1 for site in sites})
    assert plan.reassignment is document_of(plan)["reassignment"] is None


def test_replicas_go_over_the_cheapest_links_and_count_in_the_run() -> None:
    third = PlannedSite(name="third", link=LinkSpeed(up=50.0, down=5.0, round_trip_s=0.0))
    vnodes = {"slow": 1, "fast": 1, "third": 1}
    without = planned(RING, [SLOW, FAST, third], vnodes)
    plan = planned(replace(RING, replicate_every=2, state_bytes=100), [SLOW, FAST, third], vnodes)
    assert plan.replicas is not None
    assert plan.replicas.count == 1, "after round 2 of 4; none is of use after the last"
    assert plan.replicas.holders["fast"].site == "slow"
    assert plan.replicas.holders["slow"].site == plan.replicas.holders["third"].site == "fast"
    assert plan.replicas.nbytes == 10 * 100
    assert plan.bytes_of_run == tuple(each + 1000 for each in without.bytes_of_run)
    told = document_of(plan)["replicas"]
    assert [(each["name"], each["holder"]) for each in told["sites"]] == [
        ("fast", "slow"),
        ("slow", "fast"),
        ("third", "fast"),
    ]
    assert document_of(without)["replicas"] is None
