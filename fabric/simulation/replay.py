"""Replays a case in virtual time: workloads arrive, run for a while, and end.

A round takes place at each multiple of the period at which something has happened, and again one
period later while rounds still change something. A workload that was stopped runs its whole time
again. Between rounds the clock jumps, so an idle day costs nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from ..core.scheduling.fairshare import capacity_by_pool
from ..core.scheduling.plan import plan
from ..core.scheduling.records import (
    UNLIMITED,
    Decision,
    MoveMember,
    SchedulingPlan,
    StartMembers,
    StopMembers,
    WorkloadId,
)
from ..core.scheduling.snapshot import SchedulingSnapshot
from .case_schema import CaseWorkload, SettleCase
from .facts import CaseFacts


@dataclass(frozen=True, slots=True)
class Sample:
    """What queues had from a time on."""

    at_s: float
    allocated: tuple[tuple[int, ...], ...]
    """By queue."""
    fairshare: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class VirtualReplay:
    """Everything that happened."""

    facts: CaseFacts
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    waited_s: dict[str, float] = field(default_factory=dict)
    """From arrival to the first start, by workload."""
    finished: dict[str, float] = field(default_factory=dict)
    ends_s: float = 0.0
    last: SchedulingPlan | None = None


def is_replay(case: SettleCase) -> bool:
    """Whether a case says when workloads arrive or how long they run."""
    return any(each.arrives_s is not None or each.runs_s is not None for each in case.workloads)


def replayed(case: SettleCase) -> VirtualReplay:
    """Play a case until nothing happens any more."""
    clock = _Clock(case)
    while (now := clock.next()) is not None:
        clock.turn(now)
    clock.done.ends_s = clock.now
    return clock.done


class _Clock:
    def __init__(self, case: SettleCase) -> None:
        self._period = case.settings.period_s
        self._cases = {each.id: each for each in case.workloads}
        self._facts = CaseFacts(case)
        self._settings = self._facts.settings
        self._arrivals = sorted(case.workloads, key=lambda each: (_arrives(each), each.id))[::-1]
        self._ends: list[tuple[float, str, float]] = []
        """When a workload ends that has run since then; void if it has been stopped meanwhile."""
        self._again: float | None = 0.0
        """When the next round is due without an event."""
        self._protected = any(
            value
            for queue in self._facts.queues
            for value in (queue.min_runtime_before_preempt_s, queue.min_runtime_before_reclaim_s)
        )
        self.now = 0.0
        self.done = VirtualReplay(self._facts)

    def next(self) -> float | None:
        """When the next round takes place; None if nothing will happen any more."""
        times = [] if self._again is None else [self._again]
        if self._arrivals:
            times.append(_arrives(self._arrivals[-1]))
        while self._ends and self._void(self._ends[0]):
            heappop(self._ends)
        if self._ends:
            times.append(self._ends[0][0])
        if not times:
            return None
        return max(self.now, math.ceil(min(times) / self._period - 1e-9) * self._period)

    def turn(self, now: float) -> None:
        """End and add what is due, and play one round."""
        self.now = now
        self._facts.until(now)
        while self._ends and self._ends[0][0] <= now + 1e-9:
            end = heappop(self._ends)
            if not self._void(end):
                self._facts.facts.remove(WorkloadId(end[1]))
                self.done.finished[end[1]] = now
        while self._arrivals and _arrives(self._arrivals[-1]) <= now + 1e-9:
            workload = self._arrivals.pop()
            self._facts.submit(workload, now)
            if workload.running_on:
                self._began(workload.id, now, anew=True)
        snapshot = self._facts.facts.snapshot()
        self.done.last = planned = plan(snapshot, now, self._settings)
        for decision in planned.decisions:
            self._facts.facts.apply(decision, now)
            self.done.decisions.append((now, decision))
            if isinstance(decision, StartMembers):
                self._began(decision.workload, now)
        self._sample(now, planned)
        self._again = now + self._period if planned.decisions else self._next_deadline(snapshot)

    def _void(self, end: tuple[float, str, float]) -> bool:
        workload = self._facts.facts.workloads.get(WorkloadId(end[1]))
        return workload is None or workload.started_s != end[2]

    def _began(self, id: str, now: float, *, anew: bool = False) -> None:
        workload = self._facts.facts.workloads[WorkloadId(id)]
        if workload.started_s is None:
            return
        self.done.waited_s.setdefault(id, now - _arrives(self._cases[id]))
        runs = self._cases[id].runs_s
        if runs is not None and (anew or workload.started_s == now):
            heappush(self._ends, (workload.started_s + runs, id, workload.started_s))

    def _next_deadline(self, snapshot: SchedulingSnapshot) -> float | None:
        """When time alone will allow something: a grace or a minimum runtime is then over."""
        grace = self._settings.stale_gang_grace_s
        found = []
        if grace >= 0:
            since = (snapshot.workloads[id].stale_since_s for id in snapshot.stale)
            found += [begin + grace for begin in since if begin is not None]
        if self._protected and snapshot.backlog:
            for each in snapshot.workloads.values():
                if each.started_s is not None:
                    found += [each.started_s + value for value in self._runtimes(each.queue)]
        return min((each for each in found if each > self.now), default=None)

    def _runtimes(self, queue: int | None) -> Iterator[float]:
        while queue is not None:
            found = self._facts.queues[queue]
            yield from filter(
                None, (found.min_runtime_before_preempt_s, found.min_runtime_before_reclaim_s)
            )
            queue = found.parent

    def _sample(self, now: float, planned: SchedulingPlan) -> None:
        allocated = self._facts.facts.allocated()
        self.done.samples.append(Sample(now, allocated, planned.fairshare))


def _arrives(workload: CaseWorkload) -> float:
    return max(workload.arrives_s or 0.0, workload.leaves_s or 0.0)


def summary(case: SettleCase, done: VirtualReplay) -> dict[str, Any]:
    """Utilisation, and by project waits, stops and what it lacked of its share."""
    facts, scale = done.facts, done.facts.scale
    stops = dict.fromkeys((each.id for each in case.workloads), 0)
    for _, decision in done.decisions:
        if isinstance(decision, StopMembers):
            stops[decision.workload] += len(decision.positions)
        elif isinstance(decision, MoveMember):
            stops[decision.workload] += 1
    mean = _means(done)
    capacity = capacity_by_pool(facts.facts.fleet, facts.facts.ready)
    pools: dict[str, Any] = {}
    for pool, total in sorted(capacity.items()):
        tops = [i for i, q in enumerate(facts.queues) if q.pool == pool and q.parent is None]
        used = [sum(mean.allocated[i][r] for i in tops) for r in range(len(total))]
        pools[pool] = {
            name: round(used[r] / total[r], 6) for r, name in enumerate(scale.names) if total[r]
        }
    projects: dict[str, Any] = {}
    for project in case.projects:
        mine = [each.id for each in case.workloads if each.project == project.name]
        waits = sorted(done.waited_s[id] for id in mine if id in done.waited_s)
        projects[project.name] = {
            "started": len(waits),
            "finished": sum(id in done.finished for id in mine),
            "stopped_members": sum(stops[id] for id in mine),
            "waited_mean_s": statistics.fmean(waits) if waits else None,
            "waited_median_s": statistics.median(waits) if waits else None,
            "waited_longest_s": waits[-1] if waits else None,
            "below_fairshare": {
                queue.pool: {
                    name: round(mean.lacking[i][r] / unit, 6)
                    for r, (name, unit) in enumerate(zip(scale.names, scale.units, strict=True))
                    if queue.rationed[r]
                }
                for i, queue in enumerate(facts.queues)
                if queue.leaf and queue.name == project.name
            },
        }
    return {"ends_s": done.ends_s, "utilisation": pools, "projects": projects}


@dataclass(frozen=True, slots=True)
class _Means:
    """Means over time, by queue and resource, in units."""

    allocated: list[list[float]]
    lacking: list[list[float]]
    """How much less than its fair share a queue had."""


def _means(done: VirtualReplay) -> _Means:
    width = len(done.facts.scale.names)
    allocated = [[0.0] * width for _ in done.facts.queues]
    lacking = [[0.0] * width for _ in done.facts.queues]
    span = (done.ends_s - done.samples[0].at_s) or 1.0
    ends = [*(each.at_s for each in done.samples[1:]), done.ends_s]
    for sample, end in zip(done.samples, ends, strict=True):
        part = (end - sample.at_s) / span
        for i, (has, share) in enumerate(zip(sample.allocated, sample.fairshare, strict=True)):
            for r in range(width):
                allocated[i][r] += part * has[r]
                if share[r] < UNLIMITED:
                    lacking[i][r] += part * max(0, share[r] - has[r])
    return _Means(allocated, lacking)
