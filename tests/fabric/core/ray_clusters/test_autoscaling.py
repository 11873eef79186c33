"""How many machines an autoscaler asks for, and which it lets go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.fabric.core.places.placement import Placement, fit_all
from fedpilot.fabric.core.ray_clusters.autoscaling import (
    NODE_GROUP,
    AutoscalerPlan,
    AutoscalerSettings,
    Demand,
    PendingGang,
    SuppliedMachine,
    autoscale,
)
from fedpilot.fabric.core.ray_clusters.declaration import (
    GroupName,
    MachineGroup,
    MachineName,
    MachineTemplate,
)
from fedpilot.fabric.core.records import Bundle, BundleGroup, Machine, MachineId, SchedulingPolicy
from fedpilot.fabric.core.resources import Resources
from fedpilot.fabric.core.selectors import In, Selector

NOW = 1000.0
RULES = AutoscalerSettings()
PACK, SPREAD = SchedulingPolicy.PACK, SchedulingPolicy.SPREAD
STRICT_PACK, STRICT_SPREAD = SchedulingPolicy.STRICT_PACK, SchedulingPolicy.STRICT_SPREAD


def group(
    name: str, cpus: int, replicas: int = 0, most: int = 10, gpus: int = 0, **fields: object
) -> MachineGroup:
    template = MachineTemplate(
        resources=Resources.of({"CPU": cpus, "GPU": gpus}), labels={"kind": name}
    )
    given = {"name": GroupName(name), "replicas": replicas, "most": most, "template": template}
    return MachineGroup(**{**given, **fields})  # type: ignore[arg-type]


def machine(
    of: MachineGroup, number: int, used: float = 0, idle_s: float | None = None, age_s: float = 500
) -> SuppliedMachine:
    total = of.template.resources
    return SuppliedMachine(
        name=MachineName(f"{of.name}-{number}"),
        group=of.name,
        free=total - Resources.of({"CPU": used}),
        labels={NODE_GROUP: of.name, **of.template.labels},
        since_s=NOW - age_s,
        idle_since_s=None if idle_s is None else NOW - idle_s,
    )


def gang(
    id: str,
    count: int,
    cpus: float = 1,
    policy: SchedulingPolicy = PACK,
    waited_s: float = 10.0,
    gpus: float = 0,
    selector: Selector | None = None,
) -> PendingGang:
    bundle = Bundle(resources=Resources.of({"CPU": cpus, "GPU": gpus}), selector=selector or {})
    of = BundleGroup(bundles=(bundle,) * count, policy=policy)
    return PendingGang(id=id, groups=(of,), since_s=NOW - waited_s)


def plan(
    groups: Sequence[MachineGroup],
    gangs: Sequence[PendingGang] = (),
    machines: Sequence[SuppliedMachine] = (),
    **fields: object,
) -> AutoscalerPlan:
    demand = Demand(seen_s=NOW, gangs=tuple(gangs), machines=tuple(machines))
    return autoscale(groups, replace(demand, **fields), NOW, RULES)  # type: ignore[arg-type]


def replicas(found: AutoscalerPlan) -> dict[str, int]:
    return {name: edit.replicas for name, edit in found.edits.items()}


SMALL, LARGE = group("small", 2), group("large", 8, cost=3.0)


@pytest.mark.parametrize(
    ("gangs", "machines", "expected"),
    [
        pytest.param([], [], {}, id="nothing waits, nothing changes"),
        pytest.param([gang("a", 1)], [], {"small": 1}, id="one machine for what is small"),
        pytest.param([gang("a", 4)], [], {"small": 2}, id="the cheaper of two ways"),
        pytest.param([gang("a", 8)], [], {"large": 1}, id="a large machine when that is cheaper"),
        pytest.param([gang("a", 1, cpus=5)], [], {"large": 1}, id="what is too large for one kind"),
        pytest.param(
            [gang("a", 3, policy=STRICT_SPREAD)], [], {"small": 3}, id="each on its own machine"
        ),
        pytest.param([gang("a", 4, policy=STRICT_PACK)], [], {"large": 1}, id="all on one machine"),
        pytest.param(
            [gang("a", 2)],
            [machine(replace(SMALL, replicas=1), 1, used=1)],
            {"small": 1},
            id="a part of it has room already",
        ),
        pytest.param(
            [gang("a", 1), gang("b", 1)], [], {"small": 1}, id="two gangs share one machine"
        ),
    ],
)
def test_machines_for_what_waits(
    gangs: list[PendingGang], machines: list[SuppliedMachine], expected: dict[str, int]
) -> None:
    there = [replace(SMALL, replicas=len(machines)), LARGE]
    found = replicas(plan(there, gangs, machines))
    assert {name: n - len(machines) * (name == "small") for name, n in found.items()} == expected


def test_what_is_on_its_way_is_not_asked_for_again() -> None:
    small = group("small", 2, replicas=2)
    assert plan([small], [gang("a", 4)]).edits == {}
    assert replicas(plan([small], [gang("a", 6)])) == {"small": 3}


def test_a_gang_that_the_maximum_cannot_hold_gets_nothing_and_the_next_one_is_tried() -> None:
    small = group("small", 2, most=2)
    found = plan([small], [gang("large", 5, waited_s=20), gang("fits", 4)])
    assert replicas(found) == {"small": 2}
    assert found.unmet == {"large": "the groups may have no more than 2 machines of small"}


def test_the_head_has_room_as_well_and_never_leaves() -> None:
    small = group("small", 1, replicas=1, most=2)
    head = machine(group("headgroup", 1), 0, idle_s=500)
    facts = Demand(seen_s=NOW, gangs=(gang("a", 3),), machines=(machine(small, 0),), head=head)
    assert replicas(autoscale([small], facts, NOW, RULES)) == {"small": 2}
    assert autoscale([small], replace(facts, gangs=()), NOW, RULES).edits == {}


def test_of_two_gangs_that_do_not_fit_together_the_longest_waiting_gets_machines() -> None:
    small = group("small", 2, most=3)
    found = plan([small], [gang("b", 4, waited_s=5), gang("a", 6, waited_s=9)])
    assert replicas(found) == {"small": 3}
    assert [*found.unmet] == ["b"]
    assert "3 more for a" in found.edits[small.name].reason


def test_labels_choose_the_group() -> None:
    found = plan([SMALL, LARGE], [gang("a", 1, selector={"kind": In("large")})])
    assert replicas(found) == {"large": 1}
    nowhere = plan([SMALL], [gang("a", 1, selector={"kind": In("other")})])
    assert nowhere.unmet == {"a": "no group has a machine with its labels"}


def test_a_group_of_gpus_grows_from_nothing() -> None:
    gpus = group("gpus", 8, gpus=4, cost=9.0)
    assert replicas(plan([SMALL, gpus], [gang("a", 8, gpus=1)])) == {"gpus": 2}


def test_a_machine_that_is_idle_for_long_leaves_and_never_below_the_minimum() -> None:
    small = group("small", 2, replicas=3, least=1, idle_s=60.0)
    machines = [machine(small, 1, idle_s=90), machine(small, 2, idle_s=70), machine(small, 3)]
    edit = plan([small], machines=machines).edits[small.name]
    assert (edit.replicas, edit.leaving) == (1, ("small-1", "small-2"))
    assert plan([replace(small, least=3)], machines=machines).edits == {}


@pytest.mark.parametrize(
    "supply",
    [
        pytest.param(machine(group("small", 2), 1, idle_s=59), id="not idle for long enough"),
        pytest.param(machine(group("small", 2), 1), id="in use"),
        pytest.param(
            machine(group("small", 2), 1, idle_s=100, age_s=50), id="it has joined just now"
        ),
    ],
)
def test_a_machine_stays(supply: SuppliedMachine) -> None:
    small = group("small", 2, replicas=1, idle_s=60.0)
    assert plan([small], machines=[supply]).edits == {}


def test_an_idle_machine_that_a_gang_needs_stays() -> None:
    small = group("small", 2, replicas=2, idle_s=60.0)
    machines = [machine(small, 1, idle_s=90), machine(small, 2, idle_s=80)]
    edit = plan([small], [gang("a", 1)], machines).edits[small.name]
    assert len(edit.leaving) == 1


def test_old_or_missing_facts_change_nothing() -> None:
    small = group("small", 2, replicas=1, idle_s=1.0)
    demand = Demand(seen_s=NOW - 31, gangs=(gang("a", 9),), machines=(machine(small, 1, idle_s=9),))
    assert autoscale([small], demand, NOW, RULES).edits == {}
    assert autoscale([small], None, NOW, RULES).edits == {}


def test_while_it_is_not_known_what_waits_machines_come_and_none_leaves() -> None:
    small = group("small", 2, replicas=1, idle_s=1.0)
    idle = machine(small, 1, idle_s=90)
    assert plan([small], machines=[idle], whole=False).edits == {}
    assert replicas(plan([small], [gang("a", 4)], [idle], whole=False)) == {"small": 2}


def test_a_group_that_cannot_start_machines_is_not_counted_on() -> None:
    small, large = group("small", 2, replicas=1), LARGE
    found = plan([small, large], [gang("a", 1)], stuck=frozenset({small.name}))
    assert replicas(found) == {"large": 1}


def test_what_a_machine_offers_may_be_seen_only_once_one_is_there() -> None:
    open_end = MachineGroup(name=GroupName("hosts"), replicas=0, most=4)
    assert plan([open_end], [gang("a", 4)]).unmet
    offers = {open_end.name: Resources.of({"CPU": 4})}
    assert replicas(plan([open_end], [gang("a", 4)], offers=offers)) == {"hosts": 1}


BUNDLES = st.builds(
    lambda cpus, gpus: Bundle(resources=Resources.of({"CPU": cpus, "GPU": gpus})),
    st.sampled_from([0.5, 1, 2, 5]),
    st.sampled_from([0, 0, 0, 1]),
)
GANGS = st.lists(
    st.builds(
        lambda bundles, policy: (BundleGroup(bundles=tuple(bundles), policy=policy),),
        st.lists(BUNDLES, min_size=1, max_size=5),
        st.sampled_from([*SchedulingPolicy]),
    ),
    max_size=5,
)


@settings(max_examples=200)
@given(GANGS, st.integers(0, 3), st.integers(1, 6))
def test_each_gang_fits_the_machines_that_it_gets_alone(
    gangs: list[tuple[BundleGroup, ...]], replicas_before: int, most: int
) -> None:
    """What was added is never too little for the first gang, never above the maximum, and never
    more than one machine for each bundle."""
    groups = [
        group("small", 2, replicas=min(replicas_before, most), most=most),
        group("gpus", 8, gpus=2, most=2, cost=4.0),
    ]
    waiting = [
        PendingGang(id=str(number), groups=each, since_s=number)
        for number, each in enumerate(gangs)
    ]
    found = plan(groups, waiting)
    now = {
        each.name: found.edits[each.name].replicas if each.name in found.edits else each.wanted
        for each in groups
    }
    assert all(each.wanted <= now[each.name] <= each.most for each in groups)
    met = [each for each in waiting if each.id not in found.unmet]
    bundles = sum(len(part.bundles) for each in met for part in each.groups)
    assert sum(now[each.name] - each.wanted for each in groups) <= bundles
    if met:
        fleet = [
            Machine(
                id=MachineId(f"{each.name}{n}"),
                hostname="",
                total=each.template.resources,
                labels={**each.template.labels, NODE_GROUP: each.name},
            )
            for each in groups
            for n in range(now[each.name])
        ]
        assert isinstance(fit_all(met[0].groups, fleet), Placement)
