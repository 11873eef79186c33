"""What `fit` says fits does fit, what it refuses cannot, and `most` is the most."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.fabric.core.places.placement import (
    Gpus,
    Misfit,
    Placement,
    Undecided,
    fit,
    fit_all,
    most,
)
from fedpilot.fabric.core.records import Bundle, BundleGroup, Machine, MachineId, SchedulingPolicy
from fedpilot.fabric.core.resources import Resources
from fedpilot.fabric.core.selectors import matches, parse
from fedpilot.fabric.testing.fake_cluster import fake_machine

PACK, SPREAD = SchedulingPolicy.PACK, SchedulingPolicy.SPREAD
STRICT_PACK, STRICT_SPREAD = SchedulingPolicy.STRICT_PACK, SchedulingPolicy.STRICT_SPREAD


def node(selector: dict[str, str] | None = None, **amounts: float) -> Bundle:
    asked = {label: parse(text) for label, text in (selector or {}).items()}
    return Bundle(resources=Resources.of(amounts), selector=asked)


def holds(
    hosts: Sequence[Machine | None], groups: Sequence[BundleGroup], gpus: Gpus | None = None
) -> bool:
    """Say whether the nodes can lie there, by trying each way of handing out GPUs."""
    bundles = [(number, bundle) for number, g in enumerate(groups) for bundle in g.bundles]
    for number, group in enumerate(groups):
        used = [
            host.id
            for (of, _), host in zip(bundles, hosts, strict=True)
            if of == number and host is not None
        ]
        if group.policy is STRICT_SPREAD and len(set(used)) < len(used):
            return False
        if group.policy is STRICT_PACK and len(set(used)) > 1:
            return False
    on: dict[MachineId, list[Bundle]] = {}
    machines = {}
    for (_, bundle), host in zip(bundles, hosts, strict=True):
        if host is not None:
            on.setdefault(host.id, []).append(bundle)
            machines[host.id] = host
    return all(_machine_holds(machines[id], mine, gpus or {}) for id, mine in on.items())


def _machine_holds(machine: Machine, bundles: Sequence[Bundle], gpus: Gpus) -> bool:
    total = Resources()
    for bundle in bundles:
        total += bundle.resources
        if not matches(bundle.selector, machine.labels):
            return False
    if not total.fits(machine.total):
        return False
    each = gpus.get(machine.id) or (10_000,) * (machine.total["GPU"] // 10_000)
    whole = sum(b.resources["GPU"] // 10_000 for b in bundles)
    shares = [b.resources["GPU"] % 10_000 for b in bundles if b.resources["GPU"] % 10_000]
    for where in itertools.product(range(len(each)), repeat=len(shares)):
        left = list(each)
        for share, at in zip(shares, where, strict=True):
            left[at] -= share
        if min(left, default=0) >= 0 and left.count(10_000) >= whole:
            return True
    return False


def brute_most(
    groups: Sequence[BundleGroup], machines: Sequence[Machine], gpus: Gpus | None = None
) -> int:
    count = sum(len(group.bundles) for group in groups)
    return max(
        sum(host is not None for host in hosts)
        for hosts in itertools.product([*machines, None], repeat=count)
        if holds(hosts, groups, gpus)
    )


nodes = st.builds(
    lambda cpu, gpu, zone: node({"zone": zone} if zone else None, CPU=cpu, GPU=gpu),
    cpu=st.sampled_from([0.5, 1, 2]),
    gpu=st.sampled_from([0, 0, 0, 0.4, 0.5, 1]),
    zone=st.sampled_from(["", "", "z1"]),
)
fleets = st.lists(
    st.builds(
        lambda cpu, gpu, zone: (cpu, gpu, zone),
        cpu=st.integers(1, 4),
        gpu=st.integers(0, 2),
        zone=st.sampled_from(["z1", "z2"]),
    ),
    max_size=3,
).map(
    lambda facts: [
        fake_machine(f"m{i}", labels={"zone": zone}, CPU=cpu, GPU=gpu)
        for i, (cpu, gpu, zone) in enumerate(facts)
    ]
)
policies = st.sampled_from(SchedulingPolicy)
groups_of_nodes = st.lists(
    st.builds(
        lambda bundles, policy: BundleGroup(bundles=tuple(bundles), policy=policy),
        st.lists(nodes, min_size=1, max_size=3),
        policies,
    ),
    min_size=1,
    max_size=2,
).filter(lambda groups: sum(len(group.bundles) for group in groups) <= 4)


@given(groups_of_nodes, fleets)
@settings(deadline=None)
def test_fit_agrees_with_trying_everything(
    groups: list[BundleGroup], machines: list[Machine]
) -> None:
    wanted = sum(len(group.bundles) for group in groups)
    possible = brute_most(groups, machines)
    by_id = {machine.id: machine for machine in machines}
    match fit_all(groups, machines):
        case Placement(hosts):
            assert len(hosts) == wanted == possible
            assert holds([by_id[host] for host in hosts], groups)
        case Misfit(reason, at_most):
            assert at_most == possible < wanted
            assert reason
        case Undecided():
            pytest.fail("a small case must be decided")


@given(groups_of_nodes, fleets, st.integers(0, 20))
@settings(deadline=None)
def test_what_fits_is_never_refused_however_short_the_search(
    groups: list[BundleGroup], machines: list[Machine], budget: int
) -> None:
    answer = fit_all(groups, machines, budget=budget)
    wanted, possible = sum(len(group.bundles) for group in groups), brute_most(groups, machines)
    if wanted == possible:
        assert not isinstance(answer, Misfit)
    else:
        assert not isinstance(answer, Placement)
        assert answer.most <= possible


used_gpus = st.lists(
    st.lists(st.sampled_from([1000, 4000, 5000, 6000, 10_000]), max_size=3).map(
        lambda parts: tuple(sorted(parts))
    ),
    min_size=1,
    max_size=2,
)
GPU_NODES = st.sampled_from([0.1, 0.4, 0.5, 0.6, 1, 2]).map(lambda gpu: node(GPU=gpu))


@given(st.lists(GPU_NODES, min_size=1, max_size=4), policies, used_gpus)
@settings(deadline=None)
def test_gpus_that_are_free_in_parts_are_looked_at_one_by_one(
    asked: list[Bundle], policy: SchedulingPolicy, parts: list[tuple[int, ...]]
) -> None:
    machines = [fake_machine(f"m{i}", GPU=sum(free) / 10_000) for i, free in enumerate(parts)]
    gpus = {MachineId(f"m{i}"): free for i, free in enumerate(parts)}
    groups = [BundleGroup(bundles=tuple(asked), policy=policy)]
    by_id = {machine.id: machine for machine in machines}
    possible = brute_most(groups, machines, gpus)
    match fit_all(groups, machines, gpus=gpus):
        case Placement(hosts):
            assert holds([by_id[host] for host in hosts], groups, gpus)
        case Misfit(_, at_most):
            assert at_most == possible < len(asked)
        case Undecided():
            pytest.fail("a small case must be decided")


def test_two_halves_of_gpus_are_not_called_one() -> None:
    answer = fit_all(
        [BundleGroup(bundles=(node(GPU=1),), policy=PACK)],
        [fake_machine("a", GPU=1)],
        gpus={MachineId("a"): (5000, 5000)},
    )
    assert answer == Misfit("one node needs 1 GPU, and the GPUs are free in parts only", 0)


@given(nodes, policies, fleets, st.integers(1, 4))
@settings(deadline=None)
def test_equal_nodes_are_counted_right(
    wanted: Bundle, policy: SchedulingPolicy, machines: list[Machine], count: int
) -> None:
    group = BundleGroup(bundles=(wanted,) * count, policy=policy)
    possible = most(wanted, policy, machines)
    assert brute_most([group], machines) == min(count, possible)
    answer = fit(group.bundles, policy, machines)
    if count <= possible:
        by_id = {machine.id: machine for machine in machines}
        assert isinstance(answer, Placement)
        assert holds([by_id[host] for host in answer.machines], [group])
    else:
        assert isinstance(answer, Misfit)
        assert answer.most == possible


@given(groups_of_nodes, fleets, st.randoms())
@settings(deadline=None)
def test_the_order_of_machines_does_not_matter(
    groups: list[BundleGroup], machines: list[Machine], chance: random.Random
) -> None:
    shuffled = list(machines)
    chance.shuffle(shuffled)
    assert fit_all(groups, shuffled) == fit_all(groups, machines)


TWO = [fake_machine("a", CPU=2), fake_machine("b", CPU=2)]


@pytest.mark.parametrize(
    ("asked", "policy", "machines", "at_most", "reason"),
    [
        pytest.param([], PACK, TWO, 0, "no nodes", id="an empty gang is refused"),
        pytest.param(
            [node(CPU=1)], PACK, [], 0, "no machines", id="an empty cluster can hold nothing"
        ),
        pytest.param(
            [node(CPU=4)] * 2,
            PACK,
            TWO,
            0,
            "one node needs 4 CPU, the most on one machine is 2 CPU",
            id="a node is not cut in two",
        ),
        pytest.param(
            [node(CPU=1)] * 5,
            PACK,
            TWO,
            4,
            "together the nodes need 5 CPU, the cluster has 4 CPU",
            id="too many nodes name the total",
        ),
        pytest.param(
            [node(CPU=1)] * 3,
            STRICT_SPREAD,
            TWO,
            2,
            "STRICT_SPREAD needs 3 machines with room for a node, found 2",
            id="strict spread needs a machine each",
        ),
        pytest.param(
            [node(CPU=1)] * 3,
            STRICT_PACK,
            TWO,
            2,
            "STRICT_PACK needs 3 CPU on one machine, the most on one is 2 CPU",
            id="strict pack needs one machine for all",
        ),
        pytest.param(
            [node(CPU=1.5), node(CPU=1.5), node(CPU=1)],
            SPREAD,
            TWO,
            2,
            "has 4 CPU in all, but not in pieces",
            id="enough in total is not enough",
        ),
        pytest.param(
            [node({"zone": "in(z1,z2)"}, CPU=1)],
            PACK,
            TWO,
            0,
            "no machine has the labels zone=in(z1,z2)",
            id="a selector that matches no machine says so",
        ),
        pytest.param(
            [node(GPU=1)], PACK, TWO, 0, "needs 1 GPU, and no machine has any", id="no GPU at all"
        ),
        pytest.param(
            [node(GPU=0.6)] * 3,
            PACK,
            [fake_machine("a", GPU=2)],
            2,
            "the cluster has 2 GPU in all, but not in pieces",
            id="a share of a GPU comes from one GPU",
        ),
    ],
)
def test_refusals_say_why_and_how_many(
    asked: list[Bundle],
    policy: SchedulingPolicy,
    machines: list[Machine],
    at_most: int,
    reason: str,
) -> None:
    answer = fit(asked, policy, machines)
    assert isinstance(answer, Misfit)
    assert answer.most == at_most
    assert reason in answer.reason


@pytest.mark.parametrize(
    ("asked", "policy", "reason"),
    [
        pytest.param([3], PACK, "one node needs 3 CPU, the most free on one machine is 2 CPU"),
        pytest.param([1] * 5, PACK, "together the nodes need 5 CPU, 4 CPU is free"),
        pytest.param([1] * 3, STRICT_PACK, "on one machine, the most free on one is 2 CPU"),
        pytest.param([1.5, 1.5, 1], PACK, "4 CPU is free in all, but not in pieces"),
    ],
    ids=["a node", "together", "packed", "pieces"],
)
def test_a_reason_says_of_what_is_free_that_it_is_free(
    asked: list[float], policy: SchedulingPolicy, reason: str
) -> None:
    group = BundleGroup(bundles=tuple(node(CPU=size) for size in asked), policy=policy)
    answer = fit_all([group], TWO, free=True)
    assert isinstance(answer, Misfit)
    assert reason in answer.reason


def test_two_groups_must_fit_together() -> None:
    alone = BundleGroup(bundles=(node(CPU=2), node(CPU=1)), policy=SPREAD)
    assert isinstance(fit_all([alone], TWO), Placement)
    answer = fit_all([alone, alone], TWO)
    assert isinstance(answer, Misfit)
    assert answer.most == 3


def test_ten_thousand_equal_nodes_are_counted_at_once() -> None:
    fleet = [fake_machine(f"m{i}", CPU=16) for i in range(625)]
    answer = fit([node(CPU=1)] * 10_000, SPREAD, fleet)
    assert isinstance(answer, Placement)
    assert set(Counter(answer.machines).values()) == {16}
    assert fit([node(CPU=1)] * 10_001, SPREAD, fleet) == Misfit(
        "together the nodes need 10001 CPU, the cluster has 10000 CPU", 10_000
    )


def test_a_search_that_is_too_long_may_fit() -> None:
    sizes = [0.37, 0.41, 0.43, 0.47, 0.53, 0.59, 0.61, 0.67, 0.71, 0.73, 0.79, 0.83]
    asked = [node(CPU=size) for size in sizes for _ in range(3)]
    fleet = [fake_machine(f"m{i}", CPU=1.79) for i in range(12)]
    started = time.perf_counter()
    answer = fit_all([BundleGroup(bundles=tuple(asked), policy=PACK)], fleet, budget=2_000)
    assert isinstance(answer, Undecided | Placement)
    assert time.perf_counter() - started < 10


@pytest.mark.parametrize(
    ("groups", "count"),
    [
        pytest.param(
            [BundleGroup(bundles=(node(CPU=2), *[node(CPU=1)] * 599), policy=PACK)],
            200,
            id="one larger node, and many alike",
        ),
        pytest.param(
            [BundleGroup(bundles=tuple(node(CPU=1 + i / 1000) for i in range(600)), policy=SPREAD)],
            200,
            id="no two alike",
        ),
        pytest.param(
            [
                BundleGroup(bundles=(node(CPU=9 - i % 2), node(CPU=7 + i % 2)), policy=STRICT_PACK)
                for i in range(200)
            ],
            200,
            id="pairs that fill a machine each",
        ),
    ],
)
def test_many_nodes_with_room_for_all_need_no_search(groups: list[BundleGroup], count: int) -> None:
    fleet = [fake_machine(f"m{i:03}", CPU=16) for i in range(count)]
    assert isinstance(fit_all(groups, fleet, budget=0), Placement)


def test_too_much_in_total_is_refused_however_long_the_search() -> None:
    asked = [node(CPU=1 + i / 100) for i in range(40)]
    answer = fit(asked, PACK, [fake_machine(f"m{i}", CPU=2) for i in range(10)])
    assert isinstance(answer, Misfit)
    assert 10 <= answer.most < 40
