"""Turns a case into the facts and settings of the scheduler's core."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.records import SchedulingPolicy
from ..core.scheduling.fairshare import capacity_by_pool
from ..core.scheduling.priority_classes import DEFAULT_CLASS, NON_PREEMPTIBLE_FROM
from ..core.scheduling.records import (
    GangPart,
    GangSpec,
    MachineIndex,
    Member,
    Workload,
    WorkloadId,
)
from ..core.scheduling.snapshot import Facts, MachineShape, MachineSpec, Scale
from ..core.scheduling.usage import Span, UsageHistory
from ..core.selectors import parse
from ..spec.queue_table import QueueTable
from .case_schema import (
    CaseDepartment,
    CaseProject,
    CaseWorkload,
    RunningMember,
    SchedulerCase,
    parts_of,
)


class CaseFacts:
    """The facts of a case, by its names."""

    def __init__(self, case: SchedulerCase) -> None:
        totals: dict[str, float] = {}
        for capacity in case.capacities:
            for name, amount in capacity.items():
                totals[name] = totals.get(name, 0.0) + amount
        self.scale = Scale.of(totals)
        self._table = QueueTable(case, self.scale, case.pools)
        self.queues = self._table.queues
        self.settings = self._table.settings
        gpu = next((name for name in totals if name.lower() == "gpu"), None)
        shares = gpu is not None and any(
            part.request.get(gpu, 0.0) % 1 for each in case.workloads for part in parts_of(each)
        )
        machines = [
            MachineSpec(
                name=node.name,
                pool=node.pool,
                capacity=self.scale.amounts(node.capacity),
                labels=node.labels,
            )
            for node in case.nodes
        ]
        may_come = [
            MachineShape(
                pool=each.pool,
                capacity=self.scale.amounts(each.capacity),
                labels=each.labels,
                count=each.count,
            )
            for each in case.may_come
        ]
        self.facts = Facts(self.scale, machines, self.queues, each_gpu=shares, may_come=may_come)
        self._usage = None if not case.settings.usage_effect else _history(case, self)
        self._machine = {name: MachineIndex(i) for i, name in enumerate(self.facts.fleet.names)}
        self._order = {each.id: i for i, each in enumerate(case.workloads)}
        self._gangs: dict[GangSpec, GangSpec] = {}

    def until(self, now: float) -> None:
        """Let time pass: what the queues hold is used."""
        if self._usage is None:
            return
        self._usage = self._usage.after(now, self.facts.allocated())
        capacity = capacity_by_pool(self.facts.fleet, self.facts.ready)
        nothing = (0,) * len(self.scale.names)
        self.facts.set_usage(
            [
                self._usage.of_capacity(index, capacity.get(queue.pool, nothing))
                for index, queue in enumerate(self.queues)
            ]
        )

    def submit(self, workload: CaseWorkload, now: float) -> None:
        """Add a workload, with the members that run already."""
        self.facts.add(self._workload(workload, now))

    def _workload(self, workload: CaseWorkload, now: float) -> Workload:
        parts = tuple(
            GangPart(
                request=self.scale.amounts(part.request),
                least=0 if part.borrowed else part.members.min,
                most=0 if part.borrowed else part.members.max,
                flexible=part.flexible,
                selector=tuple((k, parse(v)) for k, v in sorted(part.selector.items())),
                group=part.group,
            )
            for part in parts_of(workload)
        )
        gang = GangSpec(parts=parts, policies=tuple(map(_policy, policies_of(workload))))
        priority, preemptible = self._class(workload)
        order = workload.submit_order
        running = workload.running or [
            RunningMember(part=0, node=name) for name in workload.running_on
        ]
        waits_since_s = now if workload.waits_since_s is None else workload.waits_since_s
        found = Workload(
            id=WorkloadId(workload.id),
            queue=self._table.index(workload.project, workload.pool),
            gang=self._gangs.setdefault(gang, gang),
            priority=priority,
            preemptible=preemptible,
            submit_order=self._order[workload.id] if order is None else order,
            surplus_yields=workload.surplus_yields,
            movable=workload.movable,
            waits_since_s=None if running else waits_since_s,
        )
        if not running:
            return found
        members = tuple(
            Member(each.part, self._machine[each.node], tuple(each.gpus)) for each in running
        )
        since = now if workload.started_s is None else workload.started_s
        return found.started(members, since)

    def _class(self, workload: CaseWorkload) -> tuple[int, bool]:
        """Its priority and whether it is preemptible: what it says itself, or its class."""
        level, preemptible = self._table.class_of(workload.class_ or DEFAULT_CLASS)
        priority = level if workload.priority is None else workload.priority
        if workload.preemptible is not None:
            preemptible = workload.preemptible
        if preemptible is None:
            preemptible = priority < NON_PREEMPTIBLE_FROM
        return priority, preemptible


def policies_of(workload: CaseWorkload) -> Sequence[str | None]:
    """How the members of each group are placed."""
    return (workload.policies or [None]) if workload.parts else [workload.policy]


def _policy(name: str | None) -> SchedulingPolicy | None:
    return None if name is None else SchedulingPolicy(name.upper())


def _history(case: SchedulerCase, facts: CaseFacts) -> UsageHistory:
    """What the case says that queues used before it begins."""
    given: dict[bool, Sequence[CaseDepartment | CaseProject]] = {
        False: case.departments,
        True: case.projects,
    }
    spans = [
        [
            Span(begin_s=u.from_s, end_s=u.to_s, amounts=facts.scale.amounts(u.amounts))
            for each in given[queue.leaf]
            if each.name == queue.name
            for u in each.usage
            if u.pool == queue.pool
        ]
        for queue in facts.queues
    ]
    half_life_s = case.settings.usage_half_life_s
    return UsageHistory.of(spans, len(facts.scale.names), case.begins_s, half_life_s)
