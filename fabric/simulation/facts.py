"""Turns a case into the facts and settings of the scheduler's core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from ..core.records import SchedulingPolicy
from ..core.scheduling.fairshare import capacity_by_pool
from ..core.scheduling.records import (
    UNLIMITED,
    Amounts,
    GangPart,
    GangSpec,
    MachineIndex,
    Member,
    PoolQueue,
    PoolStrategies,
    QueueIndex,
    Settings,
    Strategy,
    Workload,
    WorkloadId,
)
from ..core.scheduling.snapshot import Facts, MachineShape, MachineSpec, Scale
from ..core.scheduling.usage import Span, UsageHistory
from ..core.selectors import In
from .case_schema import (
    CLASSES,
    NON_PREEMPTIBLE_FROM,
    CaseWorkload,
    Department,
    Project,
    SchedulerCase,
)


class CaseFacts:
    """The facts of a case, by its names."""

    def __init__(self, case: SchedulerCase) -> None:
        totals: dict[str, float] = {}
        for capacity in case.capacities:
            for name, amount in capacity.items():
                totals[name] = totals.get(name, 0.0) + amount
        self.scale = Scale.of(totals)
        self.queues = _queues(case, self.scale)
        self._leaf = {
            (queue.name, queue.pool): QueueIndex(i)
            for i, queue in enumerate(self.queues)
            if queue.leaf
        }
        gpu = next((name for name in totals if name.lower() == "gpu"), None)
        shares = gpu is not None and any(
            each.member_request.get(gpu, 0.0) % 1 for each in case.workloads
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
        self._classes = {each.name: each for each in case.classes}
        self._machine = {name: MachineIndex(i) for i, name in enumerate(self.facts.fleet.names)}
        self._order = {each.id: i for i, each in enumerate(case.workloads)}
        self._gangs: dict[GangSpec, GangSpec] = {}

    def until(self, now: float) -> None:
        """Let time pass: what the queues hold is used."""
        if self._usage is None:
            return
        self._usage = self._usage.after(now, self.facts.allocated())
        capacity = capacity_by_pool(self.facts.snapshot())
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
        flexible = workload.flexible
        part = GangPart(
            request=self.scale.amounts(workload.member_request),
            least=workload.members.min,
            most=workload.members.max,
            flexible=workload.members.min == 0 if flexible is None else flexible,
            selector=tuple((k, In(v)) for k, v in sorted(workload.node_selector.items())),
        )
        policy = None if workload.policy is None else SchedulingPolicy(workload.policy.upper())
        gang = GangSpec(parts=(part,), policies=(policy,))
        priority, preemptible = self._class(workload)
        order = workload.submit_order
        found = Workload(
            id=WorkloadId(workload.id),
            queue=self._leaf[workload.project, workload.pool],
            gang=self._gangs.setdefault(gang, gang),
            priority=priority,
            preemptible=preemptible,
            submit_order=self._order[workload.id] if order is None else order,
        )
        if not workload.running_on:
            waits_since_s = now if workload.waits_since_s is None else workload.waits_since_s
            return replace(found, waits_since_s=waits_since_s)
        members = tuple(Member(0, self._machine[name]) for name in workload.running_on)
        since = now if workload.started_s is None else workload.started_s
        return found.started(members, since)

    def _class(self, workload: CaseWorkload) -> tuple[int, bool]:
        """Its priority and whether it is preemptible: what it says itself, or its class."""
        name = workload.class_ or "train"
        own = self._classes.get(name)
        priority = workload.priority
        if priority is None:
            priority = CLASSES[name] if own is None else own.priority
        preemptible = workload.preemptible
        if preemptible is None and own is not None:
            preemptible = own.preemptible
        if preemptible is None:
            preemptible = priority < NON_PREEMPTIBLE_FROM
        return priority, preemptible


def _history(case: SchedulerCase, facts: CaseFacts) -> UsageHistory:
    """What the case says that queues used before it begins."""
    given: dict[bool, Sequence[Department]] = {False: case.departments, True: case.projects}
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


def settings_of(case: SchedulerCase) -> Settings:
    """The settings of a case."""
    placement = {}
    for pool in case.pools:
        chosen = case.settings.pool_placement.get(pool, case.settings.placement)
        placement[pool] = PoolStrategies(gpu=Strategy(chosen.gpu), cpu=Strategy(chosen.cpu))
    return Settings(
        placement=placement,
        usage_effect=case.settings.usage_effect,
        starvation_s=case.settings.starvation_s,
        surplus_claims=case.settings.surplus_claims != "none",
        consolidation=case.settings.consolidation,
        stale_gang_grace_s=case.settings.stale_gang_grace_s,
        saturation_multiplier=case.settings.saturation_multiplier,
        min_runtime_at_leaf=case.settings.min_runtime_at_leaf,
    )


def _queues(case: SchedulerCase, scale: Scale) -> tuple[PoolQueue, ...]:
    """A queue for each department and project in each pool, departments first."""
    queues: list[PoolQueue] = []
    for pool in sorted(case.pools):
        at: dict[str, QueueIndex] = {}
        rationed = _rationed(case.departments, pool, scale)
        for created, department in enumerate(case.departments):
            at[department.name] = QueueIndex(len(queues))
            queues.append(_queue(department, pool, scale, rationed, created, None))
        rationed = _rationed(case.projects, pool, scale)
        for created, project in enumerate(case.projects):
            parent = at[project.department] if project.department is not None else None
            number = created + len(case.departments)
            queues.append(_queue(project, pool, scale, rationed, number, parent))
    return tuple(queues)


def _rationed(queues: Sequence[Department], pool: str, scale: Scale) -> tuple[bool, ...]:
    """Which resources of a pool any of these queues mentions."""
    mentioned = {
        name
        for queue in queues
        for amounts in (queue.quota, queue.over_quota_weight)
        for name in amounts.get(pool, ())
    }
    return tuple(name in mentioned for name in scale.names)


def _queue(
    source: Department,
    pool: str,
    scale: Scale,
    rationed: tuple[bool, ...],
    created: int,
    parent: QueueIndex | None,
) -> PoolQueue:
    quota = _amounts(scale, source.quota.get(pool, {}), 0)
    quota = tuple(
        amount if some else UNLIMITED for amount, some in zip(quota, rationed, strict=True)
    )
    given = source.over_quota_weight.get(pool, {})
    weight = tuple(
        Fraction(str(given[name])) if name in given else _as_weight(amount, unit)
        for name, amount, unit in zip(scale.names, quota, scale.units, strict=True)
    )
    return PoolQueue(
        name=source.name,
        pool=pool,
        parent=parent,
        leaf=isinstance(source, Project),
        quota=quota,
        weight=weight,
        limit=_amounts(scale, source.limit.get(pool, {}), UNLIMITED),
        rationed=rationed,
        priority=source.priority,
        created=created,
        reclaimable=source.reclaimable if isinstance(source, Project) else True,
        min_runtime_before_preempt_s=source.min_runtime_before_preempt_s,
        min_runtime_before_reclaim_s=source.min_runtime_before_reclaim_s,
    )


def _as_weight(quota: int, unit: int) -> Fraction:
    return Fraction(0) if quota >= UNLIMITED else Fraction(quota, unit)


def _amounts(scale: Scale, given: Mapping[str, float | None], missing: int) -> Amounts:
    """Amounts by name as units; null is unlimited."""
    return tuple(
        missing
        if name not in given
        else UNLIMITED
        if (amount := given[name]) is None
        else min(UNLIMITED, round(amount * unit))
        for name, unit in zip(scale.names, scale.units, strict=True)
    )
