"""The document of the queues: what each deserves, has and waits for, and its workloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.cluster_state import ClusterState, Entry, Notice
from ...core.records import ROOT, ClusterId
from ...core.resources import Resources
from ...core.scheduling.plan import plan
from ...core.scheduling.records import (
    UNLIMITED,
    Amounts,
    PoolQueue,
    SchedulingPlan,
    WorkloadId,
    plus,
)
from ...core.scheduling.snapshot import Scale, SchedulingSnapshot
from ..status import Statuses
from .case_document import case_document
from .live_facts import LiveFacts
from .live_usage import LiveUsage
from .queue_book import QueueBook


def queue_document(
    state: ClusterState,
    statuses: Statuses,
    book: QueueBook,
    stale_since: Mapping[ClusterId, float],
    now: float,
    usage: LiveUsage | None = None,
) -> dict[str, Any]:
    """All queues and workloads as they are now; the shares are those of a plan made for it."""
    facts = LiveFacts(state, book.queues, usage)
    snapshot = facts.refresh(now, stale_since=stale_since).snapshot()
    found = plan(snapshot, now, facts.settings)
    pools: dict[str, list[Resources]] = {name: [] for name in book.file.pool_names}
    for machine in state.ledger.machines.values():
        pools[book.file.pools_of(machine.labels)[0]].append(machine.total)
    entries = [each for each in state.entries.values() if each.request.parent == ROOT]
    return {
        "revision": book.revision,
        "applied_by": book.queues.applied_by,
        "applied_at": book.queues.applied_at,
        "declaration": book.queues.document,
        "pools": [
            {
                "name": name,
                "machines": len(totals),
                "capacity": Resources.total(totals).to_ray(),
            }
            for name, totals in pools.items()
        ],
        "queues": [
            _queue(index, queue, snapshot, found) for index, queue in enumerate(snapshot.queues)
        ],
        "workloads": [_workload(each, state, statuses, book, found) for each in entries],
        "case": case_document(state, facts, now),
    }


def _queue(
    index: int,
    queue: PoolQueue,
    snapshot: SchedulingSnapshot,
    found: SchedulingPlan,
) -> dict[str, Any]:
    scale, queues = snapshot.scale, snapshot.queues
    allocated, share = snapshot.allocated[index], found.fairshare[index]
    mine = [each for each in snapshot.workloads.values() if index in snapshot.path(each.queue)]
    pending: Amounts = (0,) * len(scale.names)
    for each in mine:
        pending = plus(pending, each.gang.total(each.missing))
    parent = None if queue.parent is None else queues[queue.parent].name
    rationed = [i for i, some in enumerate(queue.rationed) if some]
    over = [i for i in rationed if allocated[i] > queue.quota[i]]
    unfair = [i for i in rationed if allocated[i] > share[i]]
    return {
        "name": queue.name,
        "kind": "project" if queue.leaf else "department",
        "department": parent,
        "pool": queue.pool,
        "quota": _promises(scale, queue.quota, rationed),
        "limit": _promises(
            scale, queue.limit, [i for i, n in enumerate(queue.limit) if n < UNLIMITED]
        ),
        "weight": {scale.names[i]: float(queue.weight[i]) for i in rationed},
        "fairshare": _promises(scale, share, rationed),
        "allocated": _amounts(scale, allocated),
        "guaranteed": _amounts(scale, snapshot.guaranteed[index]),
        "pending": _amounts(scale, pending),
        "used": _used(scale, queue),
        "state": "over-fairshare" if unfair else "over-quota" if over else "in-quota",
        "running": sum(bool(each.members) for each in mine),
        "waiting": sum(not each.members for each in mine),
    }


def _workload(
    entry: Entry,
    state: ClusterState,
    statuses: Statuses,
    book: QueueBook,
    found: SchedulingPlan,
) -> dict[str, Any]:
    id, request = entry.request.id, entry.request
    rules = {each: wait.reason.rule for wait in found.waits for each in wait.workloads}
    rule = rules.get(WorkloadId(id)) if entry.waiting and not entry.promised else None
    return {
        "id": id,
        **standing(entry, book),
        "user": entry.user,
        "state": statuses.state(id),
        "rule": None if rule is None else str(rule),
        "reason": statuses.reason(id),
        "position": statuses.position(id),
        "asked_at": entry.asked_at,
        "waits_since": (entry.since or entry.asked_at) if entry.waiting else None,
        "needs": request.needs.to_ray(),
        "holds": Resources.total(each.resources for each in state.ledger.of(id)).to_ray(),
        "claims": _claims(state, id) if entry.promised and not entry.relocates else None,
    }


def standing(entry: Entry, book: QueueBook) -> dict[str, Any]:
    """What the queues know of a virtual cluster: its project, its class, and its notice."""
    request = entry.request
    level, preemptible = book.standing(request)
    return {
        "project": request.project or "default",
        "pool": request.pool or "default",
        "priority": request.priority,
        "priority_class": request.priority_class or "train",
        "class_priority": level,
        "preemptible": preemptible,
        "leaves": notice_document(entry.leaves),
        "relocates": entry.relocates,
    }


def notice_document(notice: Notice | None) -> dict[str, Any] | None:
    """When a virtual cluster or a node leaves, for whom, and why; no time: once it is idle."""
    if notice is None:
        return None
    return {
        "at": notice.at if notice.stops else None,
        "claimant": notice.claimant,
        "rule": notice.rule,
        "reason": notice.reason,
    }


def _claims(state: ClusterState, id: ClusterId) -> dict[str, Any]:
    mine = [
        (each.node or entry.request.id, each.at if each.stops else None)
        for entry in state.entries.values()
        for each in entry.notices
        if each.claimant == id
    ]
    times = [at for _, at in mine if at is not None]
    return {"victims": sorted(name for name, _ in mine), "until": max(times, default=None)}


def _used(scale: Scale, queue: PoolQueue) -> Mapping[str, float] | None:
    """The part of the pool that it has used lately; None unless shares look back."""
    if queue.usage is None:
        return None
    parts = zip(scale.names, queue.usage, strict=True)
    return {name: float(part) for name, part in parts if part}


def _promises(scale: Scale, amounts: Amounts, shown: list[int]) -> Mapping[str, float | None]:
    """By resource; null is unlimited."""
    named = scale.by_name(tuple(0 if n >= UNLIMITED else n for n in amounts))
    return {
        scale.names[i]: None if amounts[i] >= UNLIMITED else named[scale.names[i]] for i in shown
    }


def _amounts(scale: Scale, amounts: Amounts) -> Mapping[str, float]:
    return {name: amount for name, amount in scale.by_name(amounts).items() if amount}
