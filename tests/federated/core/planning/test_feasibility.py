"""Whether a gang fits its sites, and that the largest one that does is really accepted."""

from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from fedpilot.fabric import Machine, Resources, SchedulingPolicy, VirtualClusterManager
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated.config import parse_config
from fedpilot.federated.config.schema import RunConfig
from fedpilot.federated.core.planning.feasibility import (
    Shortfall,
    alternative,
    vnodes_of,
    with_settings,
)
from fedpilot.federated.core.planning.sites import GangWish, PlannedSite, SitesWish
from fedpilot.federated.prepare.gang_request import gang_request, gang_wish, sites_wish
from fedpilot.mediator import GangRequest, InProcessSite
from fedpilot.mediator.core.reservation import Promise, reserve

BASE: dict[str, Any] = {
    "federation": {"number_of_clients": 4},
    "model": {"model_type": "mlp"},
    "data": {"dataset_type": "digits", "data_distribution_kind": "iid"},
}


def gang(workers: int | None, **each: float) -> GangWish:
    return GangWish(
        each=Resources.of(each), policy=SchedulingPolicy.SPREAD, workers=workers, at_most=16
    )


def site(name: str, *cpus: float, **more: float) -> PlannedSite:
    machines = [fake_machine(f"{name}-{i}", CPU=each, **more) for i, each in enumerate(cpus)]
    return PlannedSite(name=name, machines=tuple(machines))


THREE = [site("c", 2), site("a", 2), site("b", 2)]


@pytest.mark.parametrize(
    ("sites", "wished", "wish", "held"),
    [
        pytest.param(
            THREE, gang(None, CPU=1), SitesWish(), {"a": 2, "b": 2, "c": 2}, id="as many as fit"
        ),
        pytest.param(
            [site("a", 64)], gang(None, CPU=1), SitesWish(), {"a": 16}, id="at most sixteen"
        ),
        pytest.param(
            [site("a", 64), site("b", 2), site("c", 1)],
            replace(gang(None, CPU=1), at_least=2, at_most=8),
            SitesWish(least=1),
            {"a": 8, "b": 2},
            id="a range: at sites that hold its least",
        ),
        pytest.param(
            [site("a", 4), site("b", 1)],
            gang(2, CPU=1),
            SitesWish(least=1),
            {"a": 2},
            id="a site that is too small is left out, if the others are enough",
        ),
        pytest.param(
            [PlannedSite(name="lyon", workers=4)],
            gang(3, GPU=8),
            SitesWish(),
            {"lyon": 3},
            id="a declared number of workers holds for any size",
        ),
    ],
)
def test_a_gang_that_fits_has_its_vnodes(
    sites: list[PlannedSite], wished: GangWish, wish: SitesWish, held: dict[str, int]
) -> None:
    assert vnodes_of(sites, wished, wish) == held


@pytest.mark.parametrize(
    ("sites", "wished", "wish", "found", "options"),
    [
        pytest.param(
            THREE,
            gang(4, CPU=1),
            SitesWish(),
            "a, b and c hold at most 2 each",
            ["resources.workers=2"],
            id="too many workers: as many as the smallest site holds",
        ),
        pytest.param(
            THREE,
            replace(gang(None, CPU=1), at_least=4, at_most=8),
            SitesWish(),
            "a, b and c hold at most 2 each",
            ['resources.workers={"min": 2, "max": 8}'],
            id="too many workers at least: a range from what the smallest site holds",
        ),
        pytest.param(
            [site("a", 4), site("b", 1)],
            gang(3, CPU=1),
            SitesWish(least=1, required=("b",)),
            "b holds at most 1",
            ["resources.workers=1"],
            id="a required site counts, however few are needed",
        ),
        pytest.param(
            THREE,
            gang(2, CPU=4),
            SitesWish(),
            "one node needs 4 CPU, the most on one machine is 2 CPU",
            ["resources.cpus_per_worker=2", "resources.workers=1"],
            id="vnodes too large: as large as a machine",
        ),
        pytest.param(
            [site("a", 2)],
            gang(1, CPU=1, GPU=1),
            SitesWish(),
            "a holds none",
            ["resources.gpus_per_worker=0"],
            id="no GPU: without",
        ),
        pytest.param(
            [site("a", 2)],
            gang(1, GPU=1),
            SitesWish(),
            "no machine has any",
            ["resources.cpus_per_worker=1", "resources.gpus_per_worker=0"],
            id="a vnode of GPUs alone: a CPU in their place",
        ),
        pytest.param(
            [site("a", 2, memory=1e9)],
            gang(2, CPU=1, memory=4e9),
            SitesWish(),
            "a holds none",
            ["resources.memory_per_worker=null"],
            id="too much memory: none is reserved",
        ),
        pytest.param(
            THREE,
            gang(1, CPU=1),
            SitesWish(count=5),
            "5 sites are needed, and 3 can take part",
            ["sites.count=3"],
            id="too few sites: all that there are",
        ),
        pytest.param(
            THREE,
            gang(1, CPU=1),
            SitesWish(least=4, count=5),
            "4 sites are needed, and 3 can take part",
            ["sites.count=3", "sites.min_sites=3"],
            id="too few sites for the least number",
        ),
        pytest.param(
            THREE,
            gang(9, CPU=1),
            SitesWish(required=("a", "x")),
            "site x is required and not there",
            ["resources.workers=2", 'sites.required=["a"]'],
            id="a required site is missing, and the gang is too large as well",
        ),
        pytest.param([], gang(1, CPU=1), SitesWish(), "no site", [], id="no site: nothing fits"),
    ],
)
def test_a_gang_that_does_not_fit_has_the_largest_that_does(
    sites: list[PlannedSite], wished: GangWish, wish: SitesWish, found: str, options: list[str]
) -> None:
    shortfall = vnodes_of(sites, wished, wish)
    assert isinstance(shortfall, Shortfall)
    assert found in shortfall.found
    assert shortfall.options == options
    if options:
        assert isinstance(vnodes_of(sites, *with_settings(wished, wish, shortfall.settings)), dict)


def test_no_alternative_is_offered_for_what_fits() -> None:
    assert alternative(THREE, gang(2, CPU=1), SitesWish()) == {}


machines = st.lists(
    st.builds(
        lambda cpus, gpus: {"CPU": cpus, "GPU": gpus},
        st.sampled_from([0.5, 1.0, 2.0, 3.0, 8.0]),
        st.sampled_from([0.0, 0.0, 1.0, 4.0]),
    ),
    min_size=1,
    max_size=4,
)


@st.composite
def wishes(draw: st.DrawFn) -> dict[str, Any]:
    """The sections of a config that say which gang it asks for."""
    cpus = draw(st.sampled_from([0.0, 0.25, 1.0, 1.5, 4.0, 16.0]))
    gpus = draw(st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0]))
    resources = {
        "workers": draw(st.sampled_from(["auto", 1, 2, 5, 40])),
        "cpus_per_worker": cpus if cpus or gpus else 1.0,
        "gpus_per_worker": gpus,
        "placement_group_strategy": draw(
            st.sampled_from(["SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK"])
        ),
        "memory_per_worker": draw(st.sampled_from([None, None, 2_000_000_000, 10**14])),
    }
    names = ["a", "b", "c", "x"]
    sites = {
        "min_sites": draw(st.sampled_from([None, None, 1, 2, 9])),
        "required": draw(st.lists(st.sampled_from(names), max_size=2, unique=True)),
    }
    return {"resources": resources, "sites": sites}


def accepted(config: RunConfig, sites: dict[str, list[Machine]]) -> dict[str, int] | None:
    """The vnodes that fake clusters promise to a config's gang; None if they are too few."""
    parts = {
        name: InProcessSite(name, VirtualClusterManager(FakeCluster(list(each))))
        for name, each in sites.items()
    }
    request = gang_request(config, "g")
    least = config.sites.min_sites
    steps = reserve(
        sorted(parts),
        min_sites=len(parts) if least is None else least,
        required=config.sites.required,
    )

    def answer(site: str) -> Any:
        answered: Future[Any] = parts[site].prepare(GangRequest.from_json(request.to_json()))
        return answered.result()

    try:
        asked = next(steps)
        while True:
            preparing = asked and asked[0].verb == "prepare"
            asked = steps.send({s.site: answer(s.site) for s in asked} if preparing else {})
    except StopIteration as end:
        outcome = end.value
    finally:
        for part in parts.values():
            part.release().result()
    held: dict[str, Promise] = dict(outcome.promises)
    return {site: each.vnodes for site, each in held.items()} if outcome.granted else None


@given(st.dictionaries(st.sampled_from("abc"), machines, min_size=1), wishes())
@example(
    {"a": [{"CPU": 0.5, "GPU": 0.0}], "b": [{"CPU": 0.5, "GPU": 1.0}]},
    {"resources": {"cpus_per_worker": 0.0, "gpus_per_worker": 0.5}},
)
def test_what_a_plan_says_is_what_sites_do_and_its_alternative_is_accepted(
    sites: dict[str, list[dict[str, float]]], wished: dict[str, Any]
) -> None:
    there = {
        name: [
            fake_machine(f"{name}-{i}", memory=8e9, **each) for i, each in enumerate(machines_of)
        ]
        for name, machines_of in sites.items()
    }
    planned = [PlannedSite(name=name, machines=tuple(each)) for name, each in there.items()]
    config = parse_config({**BASE, **wished})
    found = vnodes_of(
        planned, gang_wish(gang_request(config)), sites_wish(config, at_mediator=True)
    )
    if not isinstance(found, Shortfall):
        assert accepted(config, there) == found
        return
    assert accepted(config, there) is None
    assert found.settings
    smaller = parse_config({**BASE, **wished}, found.options)
    again = vnodes_of(
        planned, gang_wish(gang_request(smaller)), sites_wish(smaller, at_mediator=True)
    )
    assert isinstance(again, dict), (found, again)
    assert accepted(smaller, there) == again


def test_the_order_of_sites_does_not_matter() -> None:
    sites = [site("a", 4), site("b", 1, 2), PlannedSite(name="c", workers=3)]
    wished, wish = gang(9, CPU=2), SitesWish()
    answers = {
        json.dumps(str(vnodes_of(order, wished, wish)))
        for order in (sites, sites[::-1], [sites[1], sites[0], sites[2]])
    }
    assert len(answers) == 1
