"""A plan knows whether a site holds all vnode classes together, and which of them is slowest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.fabric import Resources, SchedulingPolicy
from fedpilot.fabric.testing.fake_cluster import fake_machine
from fedpilot.federated.config import parse_config
from fedpilot.federated.config.schema import RunConfig
from fedpilot.federated.core.planning.class_parts import PlannedClass, split
from fedpilot.federated.core.planning.document import document_of
from fedpilot.federated.core.planning.feasibility import Shortfall, vnodes_of
from fedpilot.federated.core.planning.plan import Known, PlanInputs, PlannedMemory, planned
from fedpilot.federated.core.planning.sites import GangWish, PlannedSite, SitesWish
from fedpilot.federated.prepare.gang_request import gang_request, gang_wish, sites_wish
from fedpilot.mediator.core.assignment import RoundWork
from fedpilot.mediator.core.reservation import VNodeClass

SMALL = VNodeClass(name="small", resources={"CPU": 1.0}, workers=3)
LARGE = VNodeClass(name="large", resources={"CPU": 4.0}, workers=1)


def wish(*classes: VNodeClass) -> GangWish:
    return GangWish(
        each=Resources(),
        policy=SchedulingPolicy.SPREAD,
        workers=None,
        at_least=sum(each.least for each in classes),
        at_most=sum(each.most for each in classes),
        classes=classes,
    )


def site(name: str, *cpus: float, **labels: str) -> PlannedSite:
    machines = [fake_machine(f"{name}-{i}", labels, CPU=each) for i, each in enumerate(cpus)]
    return PlannedSite(name=name, machines=tuple(machines))


GROWING = VNodeClass(name="small", resources={"CPU": 1.0}, at_least=2, at_most=6)
PICKY = replace(LARGE, labels={"zone": "in(a,b)"})


@pytest.mark.parametrize(
    ("place", "classes", "held"),
    [
        pytest.param(site("a", 7), (SMALL, LARGE), 4, id="one machine holds both"),
        pytest.param(site("a", 4, 3), (SMALL, LARGE), 4, id="a machine for each"),
        pytest.param(site("a", 64), (SMALL, LARGE), 4, id="no more than asked"),
        pytest.param(site("a", 9), (GROWING, LARGE), 6, id="a class that grows into the rest"),
        pytest.param(site("a", 7, zone="b"), (SMALL, PICKY), 4, id="the labels that it asks for"),
        pytest.param(
            replace(site("a", 7), labels_known=False), (SMALL, PICKY), 4, id="labels not known"
        ),
        pytest.param(PlannedSite(name="a", workers=5), (SMALL, LARGE), 4, id="declared workers"),
    ],
)
def test_a_site_holds_its_vnodes_of_all_classes(
    place: PlannedSite, classes: tuple[VNodeClass, ...], held: int
) -> None:
    assert vnodes_of([place], wish(*classes), SitesWish()) == {"a": held}


@pytest.mark.parametrize(
    ("place", "classes", "found"),
    [
        pytest.param(
            site("a", 6),
            (SMALL, LARGE),
            "a holds none (1 vnode of large beside 3 small (1 CPU each): together the nodes need 7"
            " CPU, the cluster has 6 CPU)",
            id="one class fits alone",
        ),
        pytest.param(
            site("a", 3, 3, 3),
            (LARGE, SMALL),
            "a holds none (1 vnode of large: one node needs 4 CPU, the most on one machine is 3",
            id="no machine is large enough",
        ),
        pytest.param(
            site("a", 64, zone="c"), (PICKY,), "zone", id="no machine with the labels asked for"
        ),
        pytest.param(
            PlannedSite(name="a", workers=3), (SMALL, LARGE), "a holds at most 3", id="declared"
        ),
    ],
)
def test_a_shortfall_names_the_class_that_does_not_fit(
    place: PlannedSite, classes: tuple[VNodeClass, ...], found: str
) -> None:
    short = vnodes_of([place], wish(*classes), SitesWish())
    assert isinstance(short, Shortfall)
    assert found in short.found
    assert all(each.name in short.wanted for each in classes)
    assert short.settings == {}


def test_fewer_sites_are_proposed_where_these_hold_all_classes() -> None:
    sites = [site("a", 7), site("b", 7)]
    short = vnodes_of(sites, wish(SMALL, LARGE), SitesWish(count=3))
    assert isinstance(short, Shortfall)
    assert short.settings == {"sites.count": 2}
    assert short.fits == "2 sites of 3 small (1 CPU each) and 1 large (4 CPU)"


BASE: dict[str, Any] = {
    "federation": {"number_of_clients": 4},
    "model": {"model_type": "mlp"},
    "data": {"dataset_type": "digits"},
}


def shortage(config: RunConfig, sites: list[PlannedSite]) -> Shortfall | dict[str, int]:
    asked = gang_wish(gang_request(config), config)
    return vnodes_of(sites, asked, sites_wish(config, at_mediator=True))


@given(
    sites=st.lists(st.lists(st.sampled_from([0.5, 2, 4, 9]), max_size=3), max_size=3),
    sizes=st.lists(
        st.tuples(st.sampled_from([0.5, 1.0, 3.0]), st.integers(1, 9), st.booleans()),
        min_size=1,
        max_size=3,
    ),
    policy=st.sampled_from(SchedulingPolicy),
)
def test_what_is_proposed_instead_fits_and_more_does_not(
    sites: list[list[float]], sizes: list[tuple[float, int, bool]], policy: SchedulingPolicy
) -> None:
    there = [site(f"s{at}", *cpus) for at, cpus in enumerate(sites)]
    groups = [
        {
            "name": f"c{at}",
            "workers": {"min": least, "max": 9} if grows else least,
            "cpus_per_worker": cpus,
            "clients": {"share": 1 / len(sizes)},
        }
        for at, (cpus, least, grows) in enumerate(sizes)
    ]
    resources = {"groups": groups, "placement_group_strategy": str(policy)}
    config = parse_config({**BASE, "resources": resources})
    found = shortage(config, there)
    if isinstance(found, dict):
        assert all(count >= sum(least for _, least, _ in sizes) for count in found.values())
        return
    if not found.settings:
        smallest = parse_config(
            {**BASE, "resources": {**resources, "groups": [{**g, "workers": 1} for g in groups]}}
        )
        assert isinstance(shortage(smallest, there), Shortfall)
        return
    smaller = parse_config({**BASE, "resources": resources}, found.options)
    assert isinstance(shortage(smaller, there), dict)
    most = max(each.least for each in gang_request(smaller).groups)
    more = gang_wish(gang_request(config), config).with_at_most(most + 1)
    assert isinstance(vnodes_of(there, more, SitesWish()), Shortfall)


def test_a_shortfall_proposes_fewer_workers_of_the_largest_classes() -> None:
    groups = [
        {"name": "small", "workers": 6, "clients": {"share": 0.5}},
        {"name": "large", "workers": 1, "cpus_per_worker": 4},
    ]
    found = shortage(parse_config({**BASE, "resources": {"groups": groups}}), [site("a", 7)])
    assert isinstance(found, Shortfall)
    assert found.fits == "1 site of 3 small (1 CPU each) and 1 large (4 CPU)"
    (option,) = found.options
    assert option == (
        'resources.groups=[{"name": "small", "workers": 3, "clients": {"share": 0.5}}, '
        '{"name": "large", "workers": 1, "cpus_per_worker": 4.0}]'
    )


@given(
    vnodes=st.integers(0, 30),
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=4),
)
def test_a_sites_vnodes_are_of_its_classes(vnodes: int, sizes: list[tuple[int, int]]) -> None:
    classes = [
        PlannedClass(name=f"{at}", least=least, most=least + more, part=1, seconds_per_sample=None)
        for at, (least, more) in enumerate(sizes)
    ]
    found = split(vnodes, classes)
    assert all(c.least <= n <= c.most for n, c in zip(found, classes, strict=True))
    least, most = (sum(getattr(each, name) for each in classes) for name in ("least", "most"))
    assert sum(found) == min(max(vnodes, least), most)


CLASSES = (
    PlannedClass(name="large", least=1, most=1, part=0.5, seconds_per_sample=0.1),
    PlannedClass(name="small", least=2, most=4, part=0.5, seconds_per_sample=0.5),
)
RUN = PlanInputs(
    name="star",
    population=10,
    clients_per_round=5,
    rounds=4,
    assignment="capacity",
    work=RoundWork(samples=np.full(10, 6), trained=0.5, model_bytes=100, sum_bytes=200),
    mean_samples=None,
    pace=Known(0.1, "a guess"),
    memory=PlannedMemory(chunk_bytes=7, chunk_clients=2, store_bytes=9, model_bytes_of_client=0),
    bytes_source="counted",
    classes=CLASSES,
    class_of=np.array([0] * 6 + [1] * 4),
)


def test_a_round_takes_as_long_as_its_slowest_class() -> None:
    plan = planned(RUN, [PlannedSite(name="here")], {"here": 3})
    (here,) = plan.sites
    large, small = here.classes
    assert (large.vnodes, large.clients, large.seconds) == (1, 6, pytest.approx(18 * 0.1))
    assert (small.vnodes, small.clients, small.seconds) == (2, 4, pytest.approx(12 * 0.5 / 2))
    assert here.compute_s == plan.seconds == pytest.approx(3.0)
    more = planned(RUN, [PlannedSite(name="here")], {"here": 5})
    assert [each.vnodes for each in more.sites[0].classes] == [1, 4]
    assert more.seconds == pytest.approx(1.8), "now the other class is the slowest"


def test_a_sites_own_pace_is_that_of_all_its_classes() -> None:
    slow = planned(RUN, [PlannedSite(name="here", seconds_per_sample=0.2)], {"here": 3})
    assert slow.seconds == pytest.approx(6.0)


def test_clients_that_are_not_counted_are_expected_in_all_classes() -> None:
    unknown = replace(RUN.work, samples=None)
    plan = planned(
        replace(RUN, work=unknown, mean_samples=6.0, class_of=None),
        [PlannedSite(name="a"), PlannedSite(name="b")],
        {"a": 3, "b": 3},
    )
    for each in plan.sites:
        assert [part.clients for part in each.classes] == [2, 2]
        assert each.compute_s == pytest.approx(2.5 * 6 * 0.5 * 0.5 / 2)


def test_a_plan_without_a_pace_takes_no_time() -> None:
    classes = [replace(each, seconds_per_sample=None) for each in CLASSES]
    plan = planned(
        replace(RUN, pace=Known(None), classes=classes), [PlannedSite(name="a")], {"a": 3}
    )
    assert plan.seconds is None
    assert [each.seconds for each in plan.sites[0].classes] == [None, None]


def test_the_document_lists_the_classes_of_a_site() -> None:
    plan = planned(RUN, [PlannedSite(name="here")], {"here": 3})
    (here,) = document_of(plan)["sites"]
    assert here["vnode_classes"] == [
        {"name": "large", "vnodes": 1, "clients": 6, "compute_seconds": 1.8},
        {"name": "small", "vnodes": 2, "clients": 4, "compute_seconds": 3},
    ]
    (alone,) = document_of(planned(replace(RUN, classes=()), [PlannedSite(name="x")], {"x": 3}))[
        "sites"
    ]
    assert "vnode_classes" not in alone
