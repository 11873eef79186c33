"""What `fit` says fits does fit, what it refuses cannot, and `most` is the most."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.fabric.core.placement import Misfit, Placement, Undecided, fit, fit_all, most
from fedpilot.fabric.core.records import Bundle, BundleGroup, Machine, MachineId, SchedulingPolicy
from fedpilot.fabric.core.resources import Resources
from fedpilot.fabric.core.selectors import matches, parse
from fedpilot.fabric.testing import fake_machine

PACK, SPREAD = SchedulingPolicy.PACK, SchedulingPolicy.SPREAD
STRICT_PACK, STRICT_SPREAD = SchedulingPolicy.STRICT_PACK, SchedulingPolicy.STRICT_SPREAD


def node(selector: dict[str, str] | None = None, **amounts: float) -> Bundle:
    asked = {label: parse(text) for label, text in (selector or {}).items()}
    return Bundle(resources=Resources.of(amounts), selector=asked)


def holds(hosts: Sequence[Machine | None], groups: Sequence[BundleGroup]) -> bool:
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
    return all(_machine_holds(machines[id], mine) for id, mine in on.items())


def _machine_holds(machine: Machine, bundles: Sequence[Bundle]) -> bool:
    total = Resources()
    for bundle in bundles:
        total += bundle.resources
        if not matches(bundle.selector, machine.labels):
            return False
    if not total.fits(machine.total):
        return False
    gpus = machine.total["GPU"] // 10_000
    whole = sum(b.resources["GPU"] // 10_000 for b in bundles)
    shares = [b.resources["GPU"] % 10_000 for b in bundles if b.resources["GPU"] % 10_000]
    if whole > gpus:
        return False
    return any(
        all(
            sum(share for share, at in zip(shares, where, strict=True) if at == gpu) <= 10_000
            for gpu in range(gpus - whole)
        )
        for where in itertools.product(range(gpus - whole), repeat=len(shares))
    )


def brute_most(groups: Sequence[BundleGroup], machines: Sequence[Machine]) -> int:
    count = sum(len(group.bundles) for group in groups)
    return max(
        sum(host is not None for host in hosts)
        for hosts in itertools.product([*machines, None], repeat=count)
        if holds(hosts, groups)
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
            [node(GPU=1)], PACK, TWO, 0, "the most on one machine is nothing", id="no GPU at all"
        ),
        pytest.param(
            [node(GPU=0.6)] * 3,
            PACK,
            [fake_machine("a", GPU=2)],
            2,
            "has 1.8 GPU in all, but not in pieces",
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


def test_too_much_in_total_is_refused_however_long_the_search() -> None:
    asked = [node(CPU=1 + i / 100) for i in range(40)]
    answer = fit(asked, PACK, [fake_machine(f"m{i}", CPU=2) for i in range(10)])
    assert isinstance(answer, Misfit)
    assert 10 <= answer.most < 40
