"""Keeps machines free for a workload that has waited too long, so that small work cannot starve it.

In each pool this is the workload that has waited longest, of those that their queue deserves: the
workload fits the queue's fair share, and so does what the queue holds with all that would stay idle
for it. The machines are those where most is free now, as many as could hold it if they were empty.
Other workloads start nothing there until it runs; what runs there goes on.
"""

from __future__ import annotations

import numpy as np

from ...records import SchedulingPolicy
from ..node_choice import Machines
from ..order import below_minimum
from ..records import Workload, plus, within
from ..snapshot import whole_devices
from .round import Kept, PlanRound


def keep_machines_free(round: PlanRound) -> None:
    """Choose in each pool the workload that waits longest, and its machines."""
    limit = round.trial.settings.starvation_s
    if limit is None:
        return
    starving = sorted(
        (workload.waits_since_s, *lines[0])
        for kind, lines in round.snapshot.backlog.items()
        if below_minimum(kind) and round.could_run[kind]
        for workload in [round.snapshot.workloads[lines[0][1]]]
        if workload.waits_since_s is not None and round.trial.now - workload.waits_since_s >= limit
    )
    for *_, id in starving:
        workload = round.snapshot.workloads[id]
        pool = round.pool(workload.queue)
        if pool in round.kept:
            continue
        closed = _roomiest(round, workload, pool)
        if _deserves(round, workload, sorted(closed)):
            round.kept[pool] = Kept(id, Machines(round.snapshot, closed))


def _deserves(round: PlanRound, workload: Workload, machines: list[int]) -> bool:
    """Whether the queue's share, limit and quota allow what would stay idle on these machines."""
    need, share = workload.gang.total(workload.missing), round.shares[workload.queue]
    free = round.trial.free[machines].sum(axis=0).tolist()
    idle = tuple(map(min, need, free))
    then = plus(tuple(round.trial.allocated[workload.queue]), idle)
    forbidden = round.refusal(workload, idle)
    return within(need, share) and within(then, share) and forbidden is None


def _roomiest(round: PlanRound, workload: Workload, pool: str) -> frozenset[int]:
    """The machines with most free that could hold, if empty, what a workload lacks."""
    snapshot, machines = round.snapshot, round.machines
    capacity = snapshot.fleet.capacity
    whole = None if snapshot.devices is None else whole_devices(snapshot.fleet, snapshot.scale)
    found: set[int] = set()
    for part, lacking in zip(workload.gang.parts, workload.missing, strict=True):
        if not lacking:
            continue
        rows = machines.suitable(pool, part)
        policy = workload.gang.policies[part.group]
        most = machines.counts(rows, part.request, capacity, whole)
        if policy is SchedulingPolicy.STRICT_SPREAD:
            most = np.minimum(most, 1)
        if policy is SchedulingPolicy.STRICT_PACK:
            rows, most = rows[most >= lacking], most[most >= lacking]
        now = machines.counts(rows, part.request, round.trial.free, round.trial.devices)
        free = round.trial.free[rows, machines.kind(part.request)]
        order = np.lexsort((-free, -np.minimum(now, most)))
        order = order[most[order] > 0]
        enough = int(np.searchsorted(np.cumsum(most[order]), lacking)) + 1
        found.update(rows[order[:enough]].tolist())
    return frozenset(found)
