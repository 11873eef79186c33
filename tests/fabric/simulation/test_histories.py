"""Random situations: every round keeps the rules, all settle, and the order of a list decides
nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, strategies as st

from fedpilot.fabric.core.scheduling.plan import plan
from fedpilot.fabric.core.scheduling.records import Plan, Rule, Start, Stop, WorkloadId
from fedpilot.fabric.core.scheduling.snapshot import Facts, MachineSpec, Snapshot
from fedpilot.fabric.simulation.case_schema import SettleCase
from fedpilot.fabric.simulation.facts import CaseFacts, settings_of
from fedpilot.fabric.simulation.settling import settle_case

MOST_ROUNDS = 20
RESOURCES = ("cpu", "gpu")


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A case with several pools, departments, resources, shares of GPUs and running work."""
    pools = draw(st.sampled_from([["default"], ["default"], ["x", "y"]]))
    nodes = [
        {
            "name": f"n{i}",
            "pool": draw(st.sampled_from(pools)) if i >= len(pools) else pools[i],
            "capacity": {
                "gpu": draw(st.sampled_from([0, 2, 2, 4, 4])),
                "cpu": draw(st.sampled_from([2, 8, 8])),
            },
            "labels": {"zone": draw(st.sampled_from("ab"))},
        }
        for i in range(draw(st.integers(len(pools), 5)))
    ]
    rationed = draw(st.sampled_from([("gpu",), ("gpu",), ("gpu", "cpu"), ()]))

    def amounts(values: st.SearchStrategy[Any]) -> dict[str, dict[str, Any]]:
        return {pool: {name: draw(values) for name in rationed} for pool in pools}

    quotas = st.sampled_from([0, 0, 1, 1, 2, 2, 2, 3, 4, 6] * 2 + [None])
    departments = [
        {"name": f"D{i}", "quota": amounts(quotas)} for i in range(draw(st.integers(0, 2)))
    ]
    projects = []
    for i in range(draw(st.integers(2, 4))):
        project: dict[str, Any] = {
            "name": f"P{i}",
            "quota": amounts(quotas),
            "over_quota_weight": amounts(st.sampled_from([0, 1, 1, 2, 3])),
            "priority": draw(st.sampled_from([0, 0, 0, 1])),
            "reclaimable": draw(st.sampled_from([True, True, False])),
        }
        if departments and draw(st.booleans()):
            project["department"] = draw(st.sampled_from(departments))["name"]
        if draw(st.integers(0, 4)) == 0:
            project["limit"] = amounts(st.integers(0, 6))
        projects.append(project)
    free = {node["name"]: dict(node["capacity"]) for node in nodes}
    workloads = [
        draw(_workload(i, pools, [each["name"] for each in projects], nodes, free))
        for i in range(draw(st.integers(3, 12)))
    ]
    return {
        "id": "random",
        "kind": "settle",
        "nodes": nodes,
        "departments": departments,
        "projects": projects,
        "workloads": workloads,
        "settings": {
            "placement": {
                "gpu": draw(st.sampled_from(["binpack", "spread"])),
                "cpu": draw(st.sampled_from(["binpack", "spread"])),
            },
            "consolidation": draw(st.booleans()),
            "stale_gang_grace_s": draw(st.sampled_from([60.0, 0.0, -1.0])),
        },
    }


@st.composite
def _workload(
    draw: st.DrawFn,
    number: int,
    pools: list[str],
    projects: list[str],
    nodes: list[dict[str, Any]],
    free: dict[str, dict[str, float]],
) -> dict[str, Any]:
    pool = draw(st.sampled_from(pools))
    least = draw(st.sampled_from([0, 1, 1, 1, 1, 2, 3]))
    most = max(1, least + draw(st.sampled_from([0, 0, 1, 3])))
    gpu = draw(st.sampled_from([0, 0.5, 1, 1, 1, 1, 2, 2, 4]))
    request = {"gpu": gpu, "cpu": draw(st.sampled_from([0, 0, 1, 2]))}
    if not any(request.values()):
        request["cpu"] = 1
    running: list[str] = []
    if draw(st.integers(0, 3)) and gpu != 0.5:  # seats of shares are tried by the cases by hand
        for node in nodes:
            room = free[node["name"]]
            while (
                node["pool"] == pool
                and len(running) < most
                and all(room[name] >= amount for name, amount in request.items())
                and draw(st.integers(0, 5))
            ):
                for name, amount in request.items():
                    room[name] -= amount
                running.append(node["name"])
    workload = {
        "id": f"w{number}",
        "project": draw(st.sampled_from(projects)),
        "pool": pool,
        "priority": draw(st.sampled_from([10, 50, 50, 75, 100])),
        "preemptible": draw(st.sampled_from([True, True, True, False])),
        "members": {"min": least, "max": most},
        "member_request": request,
        "submit_order": draw(st.integers(0, 20)),
        "running_on": running,
        "policy": draw(
            st.sampled_from([None] * 8 + ["pack", "spread", "strict_pack", "strict_spread"])
        ),
    }
    if draw(st.integers(0, 9)) == 0:
        workload["node_selector"] = {"zone": draw(st.sampled_from("ab"))}
    return workload


class Watch:
    """Checks every round of a case."""

    def __init__(self) -> None:
        self.rounds = 0

    def __call__(self, snapshot: Snapshot, planned: Plan) -> None:
        self.rounds += bool(planned.decisions)
        facts = _rebuilt(snapshot)
        stops_for, starts = set(), set()
        for decision in planned.decisions:
            assert isinstance(decision.reason.rule, Rule)
            assert decision.reason.text
            workload = facts.workloads[decision.workload]
            if isinstance(decision, Start):
                starts.add(decision.workload)
                self._may_start(snapshot, facts, decision)
            elif isinstance(decision, Stop) and decision.claimant is None:
                assert decision.reason.rule is Rule.STALE_GANG
            else:
                assert workload.preemptible, "non-preemptible work is never stopped"
                stops_for.add(decision.claimant)
            facts.apply(decision, 0.0)
            assert (facts.snapshot().free >= 0).all(), "no machine is over capacity"
            if (devices := facts.snapshot().devices) is not None:
                assert (devices >= 0).all(), "no GPU is over capacity"
        for claimant in stops_for:
            assert claimant in starts, "nothing stops unless the claimant then runs"
            assert claimant is not None
            assert not any(facts.workloads[claimant].missing)
        for id, before in snapshot.workloads.items():
            after = facts.workloads[id]
            if after.members and after.members != before.members:
                assert not any(after.missing), "a gang runs as a whole"

    def _may_start(self, snapshot: Snapshot, facts: Facts, decision: Start) -> None:
        workload = facts.workloads[decision.workload]
        now = facts.snapshot()
        counts = [0] * len(workload.gang.parts)
        for member in decision.members:
            counts[member.part] += 1
        need = workload.gang.total(counts)
        for index in snapshot.path(workload.queue):
            queue = snapshot.queues[index]
            for i, more in enumerate(need):
                if more:
                    assert now.allocated[index][i] + more <= queue.limit[i], "within the limit"
                if more and not workload.preemptible:
                    assert now.guaranteed[index][i] + more <= queue.quota[i], "within the quota"


def _rebuilt(snapshot: Snapshot) -> Facts:
    """The facts of a snapshot, built from scratch."""
    machines = [
        MachineSpec(name=name, pool=pool, capacity=tuple(row.tolist()), labels=labels)
        for name, pool, labels, row in zip(
            snapshot.fleet.names,
            snapshot.fleet.pools,
            snapshot.fleet.labels,
            snapshot.fleet.capacity,
            strict=True,
        )
    ]
    each_gpu = snapshot.devices is not None
    facts = Facts(snapshot.scale, machines, snapshot.queues, each_gpu=each_gpu)
    for workload in snapshot.workloads.values():
        facts.add(workload)
    return facts


@given(case=cases())
def test_every_round_keeps_the_rules_and_the_case_settles(case: dict[str, Any]) -> None:
    watch = Watch()
    answer = settle_case(SettleCase.model_validate(case), watch)
    assert answer["settled"]
    assert watch.rounds <= MOST_ROUNDS


@given(case=cases(), order=st.randoms(use_true_random=False))
def test_the_order_of_machines_and_workloads_in_the_file_decides_nothing(
    case: dict[str, Any], order: Any
) -> None:
    other = dict(case, nodes=list(case["nodes"]), workloads=list(case["workloads"]))
    order.shuffle(other["nodes"])
    order.shuffle(other["workloads"])
    first = settle_case(SettleCase.model_validate(case))
    second = settle_case(SettleCase.model_validate(other))
    assert first["decisions"] == second["decisions"]
    assert first["placement"] == second["placement"]


@given(case=cases())
def test_facts_kept_up_to_date_decide_what_facts_built_from_scratch_decide(
    case: dict[str, Any],
) -> None:
    read = SettleCase.model_validate(case)
    kept = CaseFacts(read)
    for workload in read.workloads:
        kept.submit(workload, 0.0)
    settings = settings_of(read)
    for _ in range(3):
        snapshot = kept.facts.snapshot()
        scratch = _rebuilt(snapshot).snapshot()
        assert (snapshot.free == scratch.free).all()
        assert snapshot.allocated == scratch.allocated
        assert snapshot.guaranteed == scratch.guaranteed
        assert snapshot.backlog == scratch.backlog
        if snapshot.devices is not None and scratch.devices is not None:
            assert np.array_equal(snapshot.devices, scratch.devices)
        decided = plan(snapshot, 0.0, settings)
        assert decided == plan(scratch, 0.0, settings)
        for decision in decided.decisions:
            kept.facts.apply(decision, 0.0)
    kept.facts.remove(WorkloadId(read.workloads[0].id))
