"""Whose run is tried next: projects compare as queues of the scheduler do, by what their runs hold.

All sites together are one pool. What is in quota comes first, then what is within the fair share,
then the rest; departments compare before their projects. In a project, runs keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedpilot.fabric.core.resources import Resources
from fedpilot.fabric.core.scheduling.admission_rules import refusal
from fedpilot.fabric.core.scheduling.fairshare import shares_among
from fedpilot.fabric.core.scheduling.order import Contest, entitlement
from fedpilot.fabric.core.scheduling.records import (
    Amounts,
    GangPart,
    GangSpec,
    Line,
    PoolQueue,
    QueueIndex,
    WorkloadId,
)
from fedpilot.fabric.core.scheduling.snapshot import Kind, Scale

POOL = "default"
"""The pool of all sites."""
DEFAULT_PROJECT = "default"
"""The project of runs that name none, or one that is not declared."""


NO_RESOURCES = Scale(names=(), units=())
ONE_PROJECT = PoolQueue(
    name=DEFAULT_PROJECT,
    pool=POOL,
    parent=None,
    leaf=True,
    quota=(),
    weight=(),
    limit=(),
    rationed=(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectQueues:
    """The projects that share a mediator's sites; without a file of queues there is one."""

    scale: Scale = NO_RESOURCES
    """The resources that queues name."""
    queues: tuple[PoolQueue, ...] = (ONE_PROJECT,)
    """Departments before their projects."""

    def leaves(self) -> Mapping[str, QueueIndex]:
        """The queue of each project."""
        return {each.name: QueueIndex(i) for i, each in enumerate(self.queues) if each.leaf}

    def path(self, leaf: QueueIndex) -> tuple[QueueIndex, ...]:
        """A project's queue and the one above it."""
        parent = self.queues[leaf].parent
        return (leaf,) if parent is None else (leaf, parent)

    def amounts(self, resources: Resources) -> Amounts:
        return self.scale.amounts(resources.to_ray())


class CountedRun(Protocol):
    """What a queue has to know of a run."""

    @property
    def run(self) -> str: ...
    @property
    def project(self) -> str: ...
    @property
    def preemptible(self) -> bool: ...


class SharedLine:
    """The runs that wait, in the order in which they are tried, as others begin."""

    def __init__(
        self,
        projects: ProjectQueues,
        total: Resources,
        at_work: Iterable[tuple[CountedRun, Resources]],
        waiting: Sequence[tuple[CountedRun, Resources]],
    ) -> None:
        """Runs come with what they hold or ask for; `waiting` is in order within each project."""
        self._projects = projects
        self._leaves = projects.leaves()
        nothing = [[0] * len(projects.scale.names) for _ in projects.queues]
        self._allocated = [[*each] for each in nothing]
        self._guaranteed = [[*each] for each in nothing]
        """What runs hold that are not preemptible."""
        for run, held in at_work:
            self._count(run, projects.amounts(held))
        self._needs = {run.run: projects.amounts(asked) for run, asked in waiting}
        requested = [[*each] for each in self._allocated]
        for run, _ in waiting:
            for index in self._path(run):
                _add(requested[index], self._needs[run.run])
        totals = {POOL: projects.amounts(total)}
        shares = shares_among(projects.queues, requested, totals, projects.scale.units)
        entitled = [entitlement(*each) for each in zip(projects.queues, shares, strict=True)]
        self._contest = Contest.of(
            projects.queues,
            shares,
            entitled,
            self._allocated,
            projects.scale.units,
            [self._entry(rank, run) for rank, (run, _) in enumerate(waiting)],
        )

    def pop(self) -> str | None:
        """Take the run out that is next; None at the end."""
        found = self._contest.pop()
        return None if found is None else str(found[1][1])

    def refusal(self, run: CountedRun) -> str | None:
        """Why a run's project may not have as much now; None if it may."""
        found = refusal(
            self._projects.queues,
            self._path(run),
            self._allocated,
            self._guaranteed,
            self._needs[run.run],
            preemptible=run.preemptible,
            scale=self._projects.scale,
        )
        return None if found is None else f"project {found.text}"

    def begin(self, run: CountedRun) -> None:
        """Count the run that was taken out last, since it has begun."""
        self._count(run, self._needs[run.run])

    def _count(self, run: CountedRun, amounts: Amounts) -> None:
        for index in self._path(run):
            _add(self._allocated[index], amounts)
            if not run.preemptible:
                _add(self._guaranteed[index], amounts)

    def _leaf(self, run: CountedRun) -> QueueIndex:
        return self._leaves.get(run.project, self._leaves[DEFAULT_PROJECT])

    def _path(self, run: CountedRun) -> tuple[QueueIndex, ...]:
        return self._projects.path(self._leaf(run))

    def _entry(self, rank: int, run: CountedRun) -> tuple[Kind, Sequence[Line]]:
        part = GangPart(request=self._needs[run.run], least=1, most=1)
        gang = GangSpec(parts=(part,))
        kind = Kind(self._leaf(run), gang, priority=0, preemptible=run.preemptible, counts=(0,))
        return kind, [(float(rank), WorkloadId(run.run))]


def _add(to: list[int], amounts: Amounts) -> None:
    for i, amount in enumerate(amounts):
        to[i] += amount
