"""Plays virtual clusters on machines, with the admission and the borrowing that the manager uses.

A step applies its events in order, ends the leases that are due, admits who waits, and starts tasks
in the order in which they were submitted; a task that finds no room waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.ledger import Ledger
from ..core.places.admission import decide
from ..core.places.borrowing import Unmet, borrow, find_growth, give_back
from ..core.places.nomination import Admit, apply
from ..core.places.placement import GPU
from ..core.places.request import Request
from ..core.records import (
    ROOT,
    Bundle,
    BundleGroup,
    ClusterId,
    Machine,
    MachineId,
    SchedulingPolicy,
    Use,
    VNodeId,
    WorkId,
    flexible_id,
)
from ..core.resources import UNIT, Resources
from ..core.selectors import In
from .case_schema import ClusterEvent, VirtualClusterCase, VirtualClusterSpec


@dataclass(slots=True)
class _Task:
    id: WorkId
    cluster: ClusterId
    resources: Resources
    unmet: bool = False
    """Whether it waits for room that another machine would give."""


def virtual_cluster_case(case: VirtualClusterCase) -> dict[str, Any]:
    """Play all steps and answer in the form of the reference page."""
    play = _Play(case)
    steps = []
    for step in case.steps:
        for event in step.do:
            play.apply(event)
        play.settle(step.at_s)
        steps.append({"at_s": step.at_s, **play.answer()})
    return {"steps": steps}


@dataclass(slots=True)
class _Names:
    """The case's names of resources, in which the core counts GPUs as `GPU`."""

    known: list[str] = field(default_factory=list)

    def resources(self, given: Mapping[str, float]) -> Resources:
        return Resources.of({self._core(name): amount for name, amount in given.items()})

    def amounts(self, resources: Resources) -> dict[str, float]:
        """All amounts of the case's resources, zeros too."""
        found = {name: resources[self._core(name)] for name in self.known}
        return {n: a // UNIT if a % UNIT == 0 else a / UNIT for n, a in found.items()}

    def _core(self, name: str) -> str:
        return GPU if name.lower() == "gpu" else name


class _Play:
    def __init__(self, case: VirtualClusterCase) -> None:
        self._specs = {each.id: each for each in case.virtual_clusters}
        self._lease_s = case.settings.lease_s
        self._names = _Names()
        self._ledger = Ledger()
        self._waiting: list[Request] = []
        self._tasks: dict[WorkId, _Task] = {}
        """The tasks that have not finished, in the order of their submission."""
        for node in case.nodes:
            self._machine_up(node.name, node.capacity, node.labels)

    def apply(self, event: ClusterEvent) -> None:
        """Make an event happen; `settle` says what comes of it."""
        match event.op:
            case "create_cluster":
                self._create(self._specs[event.cluster or ""])
            case "end_cluster":
                self._end(ClusterId(event.cluster or ""))
            case "submit_task":
                task = WorkId(event.task or "")
                resources = self._names.resources(event.resources or {})
                self._tasks[task] = _Task(task, ClusterId(event.cluster or ""), resources)
            case "finish_task":
                task = WorkId(event.task or "")
                self._tasks.pop(task, None)
                if task in self._ledger.uses:
                    self._ledger.stop(task)
            case "add_node":
                self._machine_up(event.node or "", event.capacity or {}, event.labels)

    def settle(self, now: float) -> None:
        """End leases, admit, run, until nothing changes."""
        while True:
            returned = give_back(self._ledger, now)
            admitted = self._admit(now)
            ran = self._run(now)
            if not (returned or admitted or ran):
                return

    def _machine_up(
        self, name: str, capacity: Mapping[str, float], labels: Mapping[str, str]
    ) -> None:
        for resource in capacity:
            if resource not in self._names.known:
                self._names.known.append(resource)
        total = self._names.resources(capacity)
        self._ledger.machine_up(
            Machine(id=MachineId(name), hostname=name, total=total, labels=dict(labels))
        )

    def _create(self, spec: VirtualClusterSpec) -> None:
        bundles = tuple(
            Bundle(
                resources=self._names.resources(node.resources),
                selector={k: In(*values) for k, values in node.parent_selector.items()},
            )
            for node in spec.fixed_nodes
        )
        policy = SchedulingPolicy(spec.fixed_policy.upper())
        limits = {
            GPU if name.lower() == "gpu" else name: round(most * UNIT)
            for name, most in spec.flex_max.items()
        }
        self._waiting.append(
            Request(
                id=ClusterId(spec.id),
                parent=ROOT if spec.parent is None else ClusterId(spec.parent),
                groups=(BundleGroup(bundles=bundles, policy=policy),) if bundles else (),
                least=self._names.resources(spec.flex_min),
                limits=limits,
                flexible=bool(spec.flex_min or spec.flex_max or not bundles),
            )
        )

    def _end(self, cluster: ClusterId) -> None:
        ended = {cluster}
        if cluster in self._ledger.clusters:
            ended.update(self._ledger.end(cluster))
        while more := {each.id for each in self._waiting if each.parent in ended} - ended:
            ended |= more
        self._waiting = [each for each in self._waiting if each.id not in ended]
        self._tasks = {id: t for id, t in self._tasks.items() if t.cluster not in ended}

    def _admit(self, now: float) -> bool:
        admitted = False
        while True:
            able = [
                each
                for each in self._waiting
                if each.parent == ROOT or each.parent in self._ledger.clusters
            ]
            made = [each for each in decide(self._ledger, able, now) if isinstance(each, Admit)]
            for each in made:
                apply(self._ledger, each, self._until(now))
            done = {each.request.id for each in made}
            self._waiting = [each for each in self._waiting if each.id not in done]
            if not made:
                return admitted
            admitted = True

    def _until(self, now: float) -> float:
        """When what is borrowed now is due; without leases as soon as it is unused."""
        return now + (self._lease_s or 0.0)

    def _run(self, now: float) -> bool:
        started = False
        for task in self._tasks.values():
            if task.id in self._ledger.uses or task.cluster not in self._ledger.clusters:
                continue
            place = self._place(task, now)
            if place is not None:
                self._ledger.start(task.id, Use(vnode=place, resources=task.resources))
                started = True
        return started

    def _place(self, task: _Task, now: float) -> VNodeId | None:
        """A vnode with room for all of a task; the cluster grows for it if need be."""
        task.unmet = False
        fits = [
            (self._ledger.free(each.id).size, each.id)
            for each in self._ledger.of(task.cluster)
            if task.resources.fits(self._ledger.free(each.id))
        ]
        if fits:
            return min(fits)[1]
        growth = find_growth(self._ledger, task.cluster, task.resources)
        if isinstance(growth, Unmet):
            task.unmet = growth.physical
            return None
        borrow(self._ledger, growth, self._until(now))
        return flexible_id(task.cluster, growth.machine)

    def answer(self) -> dict[str, Any]:
        """The state of everything."""
        ledger, names = self._ledger, self._names
        queued = {each.id for each in self._waiting}
        ids = sorted({*ledger.clusters, *queued})
        running = {id: 0 for id in ids}
        waiting = dict(running)
        for task in self._tasks.values():
            counts = running if task.id in ledger.uses else waiting
            counts[task.cluster] = counts.get(task.cluster, 0) + 1
        vnodes: dict[str, dict[str, Resources]] = {id: {} for id in ids}
        for id in ids:
            for each in ledger.of(id):
                on = vnodes[id].get(each.machine, Resources())
                vnodes[id][each.machine] = on + each.resources
        free = {machine: ledger.free(machine) for machine in ledger.machines}
        unmet = [task.resources for task in self._tasks.values() if task.unmet]
        return {
            "cluster_state": {id: "queued" if id in queued else "running" for id in ids},
            "cluster_total": {
                id: names.amounts(Resources.total(vnodes[id].values())) for id in ids
            },
            "tasks_running": running,
            "tasks_waiting": waiting,
            "virtual_node_count": {id: len(ledger.of(id)) for id in ids},
            "virtual_nodes": {
                id: {machine: names.amounts(held) for machine, held in vnodes[id].items()}
                for id in ids
            },
            "free": {machine: names.amounts(left) for machine, left in free.items()},
            "free_total": names.amounts(Resources.total(free.values())),
            "running_clusters": len(ledger.clusters),
            "queued_clusters": len(queued),
            "root_unmet_demand": names.amounts(Resources.total(unmet)),
        }
