"""The state of the queues as a case for `fedpilot simulate`, which decides it as the manager does.

As in the facts of a plan, who is under notice has left already, and who is promised places has
them. Machines are named by their rank, since a plan looks at them in that order, and their host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.cluster_state import ClusterState
from ...core.scheduling.priority_classes import CLASSES
from ...core.scheduling.records import MachineIndex, Workload
from ...core.scheduling.snapshot import SchedulingSnapshot
from .live_facts import LiveFacts


def case_document(state: ClusterState, facts: LiveFacts, now: float) -> dict[str, Any]:
    """One `settle` case of fresh facts; its clock begins now, so times in the past are negative."""
    snapshot, queues = facts.snapshot(), facts.queues
    names = _names(state, facts)
    pools = {*snapshot.fleet.pools}
    return {
        "id": f"revision {queues.revision}",
        "kind": "settle",
        "nodes": _nodes(snapshot, names),
        **_declared(facts, pools),
        "workloads": [
            _workload(rank, each, leaves, snapshot, names, now)
            for rank, (each, leaves) in enumerate(_all(state, facts))
            if snapshot.queues[each.queue].pool in pools
        ],
    }


def _all(state: ClusterState, facts: LiveFacts) -> list[tuple[Workload, float | None]]:
    """The workloads in line, and when those under notice leave."""
    found = [(each, None) for each in facts.snapshot().workloads.values()]
    leaving = [
        (facts.anew(each), each.leaves.at)
        for each in state.entries.values()
        if each.leaves and not each.relocates
    ]
    return sorted([*found, *leaving], key=lambda each: (each[0].submit_order, each[0].id))


def _names(state: ClusterState, facts: LiveFacts) -> list[str]:
    width = len(str(len(facts.machines)))
    hosts = (state.ledger.machines[id].hostname for id in facts.machines)
    return [f"{rank:0{width}d}-{host}" for rank, host in enumerate(hosts)]


def _nodes(snapshot: SchedulingSnapshot, names: list[str]) -> list[dict[str, Any]]:
    fleet, scale = snapshot.fleet, snapshot.scale
    return [
        {
            "name": names[i],
            "pool": fleet.pools[i],
            "capacity": scale.by_name(fleet.capacity[i].tolist()),
            "labels": dict(fleet.labels[i]),
        }
        for i in range(len(names))
    ]


def _declared(facts: LiveFacts, pools: set[str]) -> dict[str, Any]:
    """The sections of the file, with what queues have used; pools without machines are left out."""
    file, used = facts.queues.file, _used(facts, pools)

    def section(given: Any, *without: str) -> dict[str, Any]:
        found: dict[str, Any] = given.model_dump(exclude_defaults=True, exclude={*without})
        for key in ("quota", "over_quota_weight", "limit"):
            if key in found:
                found[key] = {pool: each for pool, each in found[key].items() if pool in pools}
        return {**found, "usage": mine} if (mine := used.get(given.name)) else found

    placement = file.settings.pool_placement
    settings = file.settings.model_dump(
        exclude_defaults=True, exclude={"grace_s", "pool_placement"}
    )
    chosen = {pool: each.model_dump() for pool, each in placement.items() if pool in pools}
    return {
        "departments": [section(each) for each in file.departments],
        "projects": [section(each, "users", "classes") for each in file.projects],
        "classes": [section(each) for each in file.classes if each.name not in CLASSES],
        "settings": {**settings, **({"pool_placement": chosen} if chosen else {})},
    }


def _used(facts: LiveFacts, pools: set[str]) -> dict[str, list[dict[str, Any]]]:
    """What queues have used, as one span for each pool, by name."""
    snapshot, spans, found = facts.snapshot(), facts.spans(), dict[str, list[dict[str, Any]]]()
    if spans is None or not spans.length_s:
        return found
    there = snapshot.fleet.capacity.sum(axis=0).tolist()
    for queue, amounts in zip(snapshot.queues, spans.amounts, strict=True):
        if queue.pool in pools:
            named = snapshot.scale.by_name(
                [n if some else 0 for n, some in zip(amounts, there, strict=True)]
            )
            span = {"pool": queue.pool, "from_s": -spans.length_s, "to_s": 0.0}
            known = {name: amount for name, amount in named.items() if amount}
            found.setdefault(queue.name, []).append({**span, "amounts": known})
    return found


def _workload(
    rank: int,
    workload: Workload,
    leaves: float | None,
    snapshot: SchedulingSnapshot,
    names: list[str],
    now: float,
) -> dict[str, Any]:
    queue, scale = snapshot.queues[workload.queue], snapshot.scale

    def part(index: int) -> dict[str, Any]:
        each = workload.gang.parts[index]
        given = {
            "request": {n: a for n, a in scale.by_name(each.request).items() if a},
            "members": None if each.borrowed else {"min": each.least, "max": each.most},
            "selector": {label: str(condition) for label, condition in each.selector},
            "flexible": each.flexible,
            "group": each.group,
            "borrowed": each.borrowed,
        }
        return {key: value for key, value in given.items() if value not in ({}, False, 0, None)}

    def member(index: int, machine: MachineIndex, gpus: tuple[int, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {"part": index, "node": names[machine]}
        return {**found, "gpus": list(gpus)} if gpus else found

    began, waits = workload.started_s, workload.waits_since_s
    if workload.stale_since_s is not None:
        began = workload.stale_since_s
    times: Mapping[str, float | None] = {
        "started_s": began,
        "waits_since_s": waits,
        "leaves_s": leaves,
    }
    return {
        "id": workload.id,
        "project": queue.name,
        "pool": queue.pool,
        "priority": workload.priority,
        "preemptible": workload.preemptible,
        "submit_order": rank,
        "parts": [part(i) for i in range(len(workload.gang.parts))],
        "policies": [
            None if policy is None else policy.lower() for policy in workload.gang.policies
        ],
        "running": [member(*each) for each in workload.members],
        **({"surplus_yields": True} if workload.surplus_yields else {}),
        **({} if workload.movable else {"movable": False}),
        **{key: at - now for key, at in times.items() if at is not None},
    }
