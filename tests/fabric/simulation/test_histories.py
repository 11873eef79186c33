"""Random histories: each round keeps the rules, all settle, and a list's order decides nothing.

A history is a cluster in which work is submitted and ends, and machines are lost and come back.
`hypothesis` draws its sizes and a seed, so that it is made fast and still shrinks to a small one.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st

from fedpilot.fabric.core.scheduling.plan import plan
from fedpilot.fabric.core.scheduling.records import (
    Amounts,
    Member,
    MoveMember,
    QueueIndex,
    Rule,
    SchedulingPlan,
    StartMembers,
    StopMembers,
    Workload,
    WorkloadId,
)
from fedpilot.fabric.core.scheduling.snapshot import Facts, MachineSpec, SchedulingSnapshot
from fedpilot.fabric.core.selectors import matches
from fedpilot.fabric.simulation.case_schema import SettleCase, TimelineCase
from fedpilot.fabric.simulation.facts import CaseFacts
from fedpilot.fabric.simulation.settling import timeline_case

MOST_ROUNDS = 20
HISTORIES = 500 if settings.get_current_profile_name() == "ci" else settings.default.max_examples
"""More than other properties try in CI; elsewhere what the profile says."""

QUOTAS = [0, 0, 1, 1, 2, 2, 2, 3, 4, 6] * 2 + [None]
POLICIES = [None] * 12 + ["pack", "spread", "strict_pack", "strict_spread"]


def history(
    seed: int, machines: int, departments: int, projects: int, workloads: int, steps: int
) -> dict[str, Any]:
    """A timeline with these many of each, drawn from the seed."""
    draw = random.Random(seed)
    pools = draw.choice([["default"], ["default"], ["x", "y"]])[:machines]
    nodes = [
        {
            "name": f"n{i}",
            "pool": pools[i] if i < len(pools) else draw.choice(pools),
            "capacity": {"gpu": draw.choice([0, 2, 2, 4, 4]), "cpu": draw.choice([2, 8, 8])},
            "labels": {"zone": draw.choice("ab")},
        }
        for i in range(machines)
    ]
    rationed = draw.choice([("gpu",), ("gpu",), ("gpu", "cpu"), ()])

    def amounts(values: list[Any]) -> dict[str, dict[str, Any]]:
        return {pool: {name: draw.choice(values) for name in rationed} for pool in pools}

    tops = [{"name": f"D{i}", "quota": amounts(QUOTAS)} for i in range(departments)]
    queues: list[dict[str, Any]] = []
    for i in range(projects):
        queue: dict[str, Any] = {
            "name": f"P{i}",
            "quota": amounts(QUOTAS),
            "over_quota_weight": amounts([0, 1, 1, 2, 3]),
            "priority": draw.choice([0, 0, 0, 1]),
            "reclaimable": draw.random() < 0.7,
        }
        if tops and draw.random() < 0.5:
            queue["department"] = draw.choice(tops)["name"]
        if draw.random() < 0.2:
            queue["limit"] = amounts([0, 1, 2, 3, 4, 5, 6])
        for key in ("min_runtime_before_preempt_s", "min_runtime_before_reclaim_s"):
            if draw.random() < 0.1:
                queue[key] = draw.choice([0, 50, 150])
        queues.append(queue)
    shares = draw.random() < 0.4
    work = [_workload(draw, i, pools, projects, shares) for i in range(workloads)]
    return {
        "id": "random",
        "kind": "timeline",
        "nodes": nodes,
        "departments": tops,
        "projects": queues,
        "workloads": work,
        "settings": {
            "placement": {key: draw.choice(["binpack", "spread"]) for key in ("gpu", "cpu")},
            "consolidation": draw.random() < 0.5,
            "starvation_s": draw.choice([None, None, 0, 150]),
            "surplus_claims": draw.choice(["in-quota", "in-quota", "none"]),
            "stale_gang_grace_s": draw.choice([60.0, 60.0, 0.0, -1.0]),
        },
        "steps": _steps(draw, nodes, work, steps),
    }


def _workload(
    draw: random.Random, number: int, pools: list[str], projects: int, shares: bool
) -> dict[str, Any]:
    least = draw.choice([0, 1, 1, 1, 1, 2, 3])
    request = {
        "gpu": draw.choice([0, 0.5, 0.3, 1, 2] if shares else [0, 1, 1, 1, 1, 2, 2, 4]),
        "cpu": draw.choice([0, 0, 1, 2]),
    }
    if not any(request.values()):
        request["cpu"] = 1
    workload: dict[str, Any] = {
        "id": f"w{number}",
        "project": f"P{draw.randrange(projects)}",
        "pool": draw.choice(pools),
        "priority": draw.choice([10, 50, 50, 75, 100]),
        "preemptible": draw.random() < 0.75,
        "members": {"min": least, "max": max(1, least + draw.choice([0, 0, 1, 3]))},
        "member_request": request,
        "submit_order": draw.randrange(20),
        "policy": draw.choice(POLICIES),
    }
    if draw.random() < 0.2:
        workload["flexible"] = draw.random() < 0.5
    if draw.random() < 0.1:
        workload["node_selector"] = {"zone": draw.choice("ab")}
    return workload


def _steps(
    draw: random.Random, nodes: list[dict[str, Any]], work: list[dict[str, Any]], count: int
) -> list[dict[str, Any]]:
    """Submit most of the work at first and the rest later, among ends and losses of machines."""
    waiting = [each["id"] for each in work]
    draw.shuffle(waiting)
    first = waiting[: len(waiting) * 2 // 3 + 1]
    waiting = waiting[len(first) :]
    steps = [{"at_s": 0, "do": [{"op": "submit", "workload": id} for id in first]}]
    lost: list[str] = []
    for number in range(1, count):
        do = []
        for _ in range(draw.randrange(1, 4)):
            match draw.choice(["submit", "submit", "finish", "lost", "back"]):
                case "submit" if waiting:
                    do.append({"op": "submit", "workload": waiting.pop()})
                case "finish":
                    do.append({"op": "finish", "workload": draw.choice(work)["id"]})
                case "lost":
                    name = draw.choice(nodes)["name"]
                    lost.append(name)
                    do.append({"op": "node_lost", "node": name})
                case "back" if lost:
                    do.append({"op": "node_back", "node": lost.pop(0)})
        steps.append({"at_s": number * 100, "do": do})
    return steps


HISTORY = st.builds(
    history,
    seed=st.integers(0, 2**32),
    machines=st.integers(1, 5),
    departments=st.integers(0, 2),
    projects=st.integers(1, 4),
    workloads=st.integers(1, 12),
    steps=st.integers(1, 4),
)


class Cluster:
    """What runs where, counted by itself, so that the scheduler's own sums are not trusted."""

    def __init__(self, snapshot: SchedulingSnapshot) -> None:
        self._snapshot = snapshot
        self.members = {id: list(each.members) for id, each in snapshot.workloads.items()}
        self.used: dict[int, list[int]] = defaultdict(lambda: [0] * len(snapshot.scale.names))
        self.gpus: dict[tuple[int, int], int] = defaultdict(int)
        self.allocated = [[0] * len(snapshot.scale.names) for _ in snapshot.queues]
        self.guaranteed = [[0] * len(snapshot.scale.names) for _ in snapshot.queues]
        for id, members in self.members.items():
            self._count(id, members, 1)

    def put(self, id: WorkloadId, members: Iterable[Member], at: int | None = None) -> None:
        """Start members, from a position in the list on; the machines must have room for them."""
        members = tuple(members)
        at = len(self.members[id]) if at is None else at
        self.members[id][at:at] = members
        self._count(id, members, 1)
        workload = self._snapshot.workloads[id]
        fleet = self._snapshot.fleet
        for member in members:
            part, machine = workload.gang.parts[member.part], member.machine
            assert self._snapshot.ready[machine], "work runs on ready machines"
            pool = self._snapshot.queues[workload.queue].pool
            assert fleet.pools[machine] == pool, "work runs in its pool"
            assert matches(dict(part.selector), fleet.labels[machine]), "work runs where it asks to"
            for has, most in zip(self.used[machine], fleet.capacity[machine].tolist(), strict=True):
                assert has <= most, "no machine is over capacity"
            for gpu in member.gpus:
                assert self.gpus[machine, gpu] <= 10_000, "no GPU is over capacity"

    def take(self, id: WorkloadId, positions: tuple[int, ...]) -> None:
        """Stop members."""
        members = self.members[id]
        self._count(id, [members[at] for at in positions], -1)
        self.members[id] = [each for at, each in enumerate(members) if at not in positions]

    def _count(self, id: WorkloadId, members: Iterable[Member], sign: int) -> None:
        workload = self._snapshot.workloads[id]
        column = self._snapshot.scale.gpu
        for member in members:
            request = workload.gang.parts[member.part].request
            _add(self.used[member.machine], request, sign)
            for gpu in member.gpus:
                asked = request[column] if column is not None else 0
                self.gpus[member.machine, gpu] += sign * min(asked, 10_000)
            for queue in self._snapshot.path(workload.queue):
                _add(self.allocated[queue], request, sign)
                if not workload.preemptible:
                    _add(self.guaranteed[queue], request, sign)


def _add(total: list[int], amounts: Amounts, sign: int) -> None:
    for i, amount in enumerate(amounts):
        total[i] += sign * amount


class Watch:
    """Checks every round of a history."""

    def __init__(self, chosen: dict[str, Any]) -> None:
        self._consolidation = chosen["consolidation"]
        self._claims = chosen["surplus_claims"] != "none"

    def __call__(self, snapshot: SchedulingSnapshot, planned: SchedulingPlan) -> None:
        cluster = Cluster(snapshot)
        claimants: set[WorkloadId | None] = set()
        starts: set[WorkloadId] = set()
        for decision in planned.decisions:
            assert isinstance(decision.reason.rule, Rule)
            assert decision.reason.text
            workload = snapshot.workloads[decision.workload]
            match decision:
                case StartMembers():
                    starts.add(decision.workload)
                    self._may_start(snapshot, cluster, workload, decision)
                    cluster.put(workload.id, decision.members)
                case StopMembers(claimant=None):
                    assert decision.reason.rule is Rule.STALE_GANG
                    assert workload.stale_since_s is not None
                    cluster.take(workload.id, decision.positions)
                case StopMembers():
                    claimants.add(decision.claimant)
                    self._may_stop(snapshot, cluster, workload, decision)
                    cluster.take(workload.id, decision.positions)
                case MoveMember():
                    assert self._consolidation
                    assert workload.preemptible, "non-preemptible work never moves"
                    claimants.add(decision.claimant)
                    cluster.take(workload.id, (decision.position,))
                    cluster.put(workload.id, [decision.target], decision.position)
        assert claimants <= starts, "nothing stops unless the claimant then runs"
        for id, workload in snapshot.workloads.items():
            members = cluster.members[id]
            if members and members != list(workload.members):
                assert _complete(workload, members), "a gang runs as a whole"
        self._waits(snapshot, planned, cluster)

    def _may_start(
        self,
        snapshot: SchedulingSnapshot,
        cluster: Cluster,
        workload: Workload,
        decision: StartMembers,
    ) -> None:
        need = [0] * len(snapshot.scale.names)
        for member in decision.members:
            _add(need, workload.gang.parts[member.part].request, 1)
        for index in snapshot.path(workload.queue):
            queue = snapshot.queues[index]
            for i, more in enumerate(need):
                if more:
                    assert cluster.allocated[index][i] + more <= queue.limit[i], "within the limit"
                if more and not workload.preemptible:
                    then = cluster.guaranteed[index][i] + more
                    assert then <= queue.quota[i], "non-preemptible work stays within the quota"

    def _may_stop(
        self,
        snapshot: SchedulingSnapshot,
        cluster: Cluster,
        victim: Workload,
        decision: StopMembers,
    ) -> None:
        assert victim.preemptible, "non-preemptible work is never stopped"
        assert decision.claimant is not None
        claimant = snapshot.workloads[decision.claimant]
        queues = snapshot.queues
        if not any(claimant.missing):
            assert self._claims, "flexible members claim only where they may"
            assert claimant.gang.parts[0].flexible, "other surplus stops nobody"
            assert victim.queue != claimant.queue
            has, quota = cluster.allocated[claimant.queue], queues[claimant.queue].quota
            need = claimant.gang.parts[0].request
            assert all(a + b <= q for a, b, q in zip(has, need, quota, strict=True)), "in quota"
        assert queues[victim.queue].pool == queues[claimant.queue].pool
        left = len(cluster.members[victim.id]) - len(decision.positions)
        surplus = left >= sum(part.least for part in victim.gang.parts)
        if victim.queue == claimant.queue:
            assert surplus or victim.priority < claimant.priority, "equal priority never gives way"
            return
        assert surplus or queues[victim.queue].reclaimable
        branch = _branch(snapshot, victim.queue, claimant.queue)
        has, quota = cluster.allocated[branch], queues[branch].quota
        assert any(a > b for a, b in zip(has, quota, strict=True)), "only what is above quota"

    def _waits(
        self, snapshot: SchedulingSnapshot, planned: SchedulingPlan, cluster: Cluster
    ) -> None:
        """Every workload below its minimum has one reason; none has room and may start."""
        told = [id for wait in planned.waits for id in wait.workloads]
        below = {
            id
            for id, each in snapshot.workloads.items()
            if not _complete(each, each.members)
            and (planned.decisions == () or not _complete(each, cluster.members[id]))
        }
        assert len(told) == len(set(told))
        assert below <= set(told)
        if planned.decisions:
            return
        for wait in planned.waits:
            assert isinstance(wait.reason.rule, Rule)
            for id in wait.workloads:
                workload = snapshot.workloads[id]
                if wait.reason.rule is Rule.NO_ROOM and sum(workload.missing) == 1:
                    assert not self._has_room(snapshot, workload), "who has room starts"

    def _has_room(self, snapshot: SchedulingSnapshot, workload: Workload) -> bool:
        """Whether a lone member without policy has a machine."""
        (part,) = workload.gang.parts
        if workload.members or workload.gang.policies != (None,) or snapshot.devices is not None:
            return False
        fleet, pool = snapshot.fleet, snapshot.queues[workload.queue].pool
        return any(
            snapshot.ready[i]
            and fleet.pools[i] == pool
            and matches(dict(part.selector), fleet.labels[i])
            and bool((snapshot.free[i] >= np.array(part.request)).all())
            for i in range(len(fleet.names))
        )


def _complete(workload: Workload, members: Iterable[Member]) -> bool:
    counts = [0] * len(workload.gang.parts)
    for member in members:
        counts[member.part] += 1
    return all(n >= part.least for n, part in zip(counts, workload.gang.parts, strict=True))


def _branch(snapshot: SchedulingSnapshot, mine: QueueIndex, other: QueueIndex) -> QueueIndex:
    """The queue on the path of `mine` just below what it has in common with `other`."""
    theirs = set(snapshot.path(other))
    return next(queue for queue in reversed(snapshot.path(mine)) if queue not in theirs)


@settings(max_examples=HISTORIES)
@given(case=HISTORY, order=st.integers(0, 2**32))
def test_every_round_keeps_the_rules_and_the_order_of_the_file_decides_nothing(
    case: dict[str, Any], order: int
) -> None:
    watch = Watch(case["settings"])
    answer = timeline_case(TimelineCase.model_validate(case), watch)
    for step in answer["steps"]:
        assert step["settled"]
        assert step["rounds"] <= MOST_ROUNDS
    other = dict(case, nodes=list(case["nodes"]), workloads=list(case["workloads"]))
    random.Random(order).shuffle(other["nodes"])
    random.Random(order).shuffle(other["workloads"])
    again = timeline_case(TimelineCase.model_validate(other))
    for first, second in zip(answer["steps"], again["steps"], strict=True):
        assert first["decisions"] == second["decisions"]
        assert first["placement"] == second["placement"]


def _rebuilt(snapshot: SchedulingSnapshot) -> Facts:
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


@given(case=HISTORY)
def test_facts_kept_up_to_date_decide_what_facts_built_from_scratch_decide(
    case: dict[str, Any],
) -> None:
    settled = {key: value for key, value in case.items() if key != "steps"}
    read = SettleCase.model_validate({**settled, "kind": "settle"})
    kept = CaseFacts(read)
    for workload in read.workloads:
        kept.submit(workload, 0.0)
    chosen = kept.settings
    for round in range(4):
        snapshot = kept.facts.snapshot()
        scratch = _rebuilt(snapshot).snapshot()
        assert (snapshot.free == scratch.free).all()
        assert snapshot.allocated == scratch.allocated
        assert snapshot.guaranteed == scratch.guaranteed
        assert snapshot.backlog == scratch.backlog
        if snapshot.devices is not None and scratch.devices is not None:
            assert np.array_equal(snapshot.devices, scratch.devices)
        decided = plan(snapshot, 0.0, chosen)
        assert decided == plan(scratch, 0.0, chosen)
        for decision in decided.decisions:
            kept.facts.apply(decision, 0.0)
        if round == 1:
            kept.facts.remove(WorkloadId(read.workloads[0].id))
