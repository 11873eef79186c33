"""Turns declared queues into the queues and settings that the scheduler's core reasons about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Protocol

from ..core.scheduling.priority_classes import CLASSES, DEFAULT_CLASS, NON_PREEMPTIBLE_FROM
from ..core.scheduling.records import (
    UNLIMITED,
    Amounts,
    PoolQueue,
    PoolStrategies,
    QueueIndex,
    Settings,
    Strategy,
)
from ..core.scheduling.snapshot import Scale
from .queues import (
    Department,
    PriorityClass,
    Project,
    SchedulerSettings,
)


class DeclaredQueues(Protocol):
    """What a file of queues and a case both declare."""

    @property
    def departments(self) -> Sequence[Department]: ...
    @property
    def projects(self) -> Sequence[Project]: ...
    @property
    def classes(self) -> Sequence[PriorityClass]: ...
    @property
    def settings(self) -> SchedulerSettings: ...
    @property
    def stops(self) -> bool: ...


class QueueTable:
    """A queue for each department and project in each pool."""

    def __init__(self, declared: DeclaredQueues, scale: Scale, pools: Iterable[str]) -> None:
        """Amounts of resources that the scale does not have are left out."""
        names = sorted(pools)
        self.queues: tuple[PoolQueue, ...] = _queues(declared, scale, names)
        """Pool by pool, departments before projects."""
        self.settings: Settings = _settings(declared.settings, names)
        self._stops = declared.stops
        self._classes = {each.name: each for each in declared.classes}
        self._leaf = {
            (queue.name, queue.pool): QueueIndex(i)
            for i, queue in enumerate(self.queues)
            if queue.leaf
        }

    def index(self, project: str, pool: str) -> QueueIndex:
        """The queue of a project in a pool. KeyError if it has none."""
        return self._leaf[project, pool]

    def class_of(self, name: str) -> tuple[int, bool | None]:
        """The priority of a class, and whether it is preemptible, if it says so. KeyError."""
        own = self._classes.get(name)
        return (CLASSES[name], None) if own is None else (own.priority, own.preemptible)

    def priority_and_preemptible(
        self, priority_class: str, priority: int, preemptible: bool | None
    ) -> tuple[int, bool]:
        """The priority of a request, and whether it may be stopped for others. KeyError.

        A priority other than 0 replaces the one of its class, and decides the order only: the class
        decides whether it is preemptible, unless the request says so. An empty class is `train`.
        Without a file of queues no request is preemptible.
        """
        level, told = self.class_of(priority_class or DEFAULT_CLASS)
        if preemptible is None:
            preemptible = level < NON_PREEMPTIBLE_FROM if told is None else told
        return priority or level, preemptible and self._stops


def _settings(given: SchedulerSettings, pools: Iterable[str]) -> Settings:
    placement = {}
    for pool in pools:
        chosen = given.pool_placement.get(pool, given.placement)
        placement[pool] = PoolStrategies(gpu=Strategy(chosen.gpu), cpu=Strategy(chosen.cpu))
    return Settings(
        placement=placement,
        usage_effect=given.usage_effect,
        starvation_s=given.starvation_s,
        surplus_claims=given.surplus_claims != "none",
        consolidation=given.consolidation,
        stale_gang_grace_s=given.stale_gang_grace_s,
        saturation_multiplier=given.saturation_multiplier,
        min_runtime_at_leaf=given.min_runtime_at_leaf,
    )


def _queues(declared: DeclaredQueues, scale: Scale, pools: Sequence[str]) -> tuple[PoolQueue, ...]:
    queues: list[PoolQueue] = []
    for pool in pools:
        at: dict[str, QueueIndex] = {}
        rationed = _rationed(declared.departments, pool, scale)
        for created, department in enumerate(declared.departments):
            at[department.name] = QueueIndex(len(queues))
            queues.append(_queue(department, pool, scale, rationed, created, None))
        rationed = _rationed(declared.projects, pool, scale)
        for created, project in enumerate(declared.projects):
            parent = at[project.department] if project.department is not None else None
            number = created + len(declared.departments)
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
