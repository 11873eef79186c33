"""The facts of one round: machines, queues and workloads, kept by `Facts`; a snapshot is frozen.

What machines have free is an array of machines x resources, and of machines x GPUs where work asks
for shares of a GPU: an action looks at all machines in a few operations. Workloads that wait are
listed by kind. All of a kind ask for the same in the same queue, so one answer serves them all.
A snapshot costs a copy of the arrays and of the lists, however much has happened before it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .records import (
    UNLIMITED,
    Amounts,
    Decision,
    GangSpec,
    Line,
    MachineIndex,
    Member,
    MoveMember,
    PoolQueue,
    QueueIndex,
    StartMembers,
    StopMembers,
    Workload,
    WorkloadId,
)

Array: TypeAlias = NDArray[np.int64]

FINE = 10_000
"""Units of one whole: Ray's own steps."""
LARGEST_SUM = 1 << 60
"""The largest total that is counted in fine units; larger ones (bytes) are counted in wholes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The resources by name, and how many units one whole of each has."""

    names: tuple[str, ...]
    units: tuple[int, ...]

    @classmethod
    def of(cls, totals: Mapping[str, float]) -> Scale:
        """A scale for sums of at most these totals, with the names sorted."""
        names = tuple(sorted(totals))
        fine = (totals[name] * FINE < LARGEST_SUM for name in names)
        return cls(names=names, units=tuple(FINE if each else 1 for each in fine))

    @property
    def gpu(self) -> int | None:
        """The column of GPUs."""
        return self._column("gpu")

    @property
    def cpu(self) -> int | None:
        """The column of CPUs."""
        return self._column("cpu")

    def _column(self, kind: str) -> int | None:
        return next((i for i, name in enumerate(self.names) if name.lower() == kind), None)

    def amounts(self, given: Mapping[str, float], missing: int = 0) -> Amounts:
        """Amounts by name as units; `missing` stands for names that are not given."""
        return tuple(
            min(UNLIMITED, round(given[name] * unit)) if name in given else missing
            for name, unit in zip(self.names, self.units, strict=True)
        )

    def by_name(self, amounts: Sequence[int]) -> dict[str, float]:
        """Units as amounts by name; whole numbers are ints."""
        return {
            name: amount // unit if amount % unit == 0 else amount / unit
            for name, unit, amount in zip(self.names, self.units, amounts, strict=True)
        }

    def words(self, amounts: Sequence[int]) -> str:
        """Amounts as a text: `2 gpu, 1 cpu`."""
        named = {name: amount for name, amount in self.by_name(amounts).items() if amount}
        return ", ".join(f"{amount:.15g} {name}" for name, amount in named.items()) or "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """A machine as the scheduler sees it."""

    name: str
    pool: str
    capacity: Amounts
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineShape:
    """Machines that are not there and may come."""

    pool: str
    capacity: Amounts
    labels: Mapping[str, str]
    count: int | None = None
    """How many; None for any number."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fleet:
    """All machines, sorted by name."""

    names: tuple[str, ...]
    pools: tuple[str, ...]
    """The pool of each machine."""
    labels: tuple[Mapping[str, str], ...]
    capacity: Array
    """Machines x resources."""
    has_gpus: NDArray[np.bool_]

    @classmethod
    def of(cls, machines: Iterable[MachineSpec], scale: Scale) -> Fleet:
        ordered = sorted(machines, key=lambda each: each.name)
        width = len(scale.names)
        capacity = np.array([each.capacity for each in ordered], np.int64)
        capacity = capacity.reshape(len(ordered), width)
        return cls(
            names=tuple(each.name for each in ordered),
            pools=tuple(each.pool for each in ordered),
            labels=tuple(each.labels for each in ordered),
            capacity=_frozen(capacity),
            has_gpus=_frozen(_has_gpus(capacity, scale)),
        )


class Kind(NamedTuple):
    """Workloads of one queue that ask for the same and have as much of it."""

    queue: QueueIndex
    gang: GangSpec
    priority: int
    preemptible: bool
    counts: tuple[int, ...]
    """The running members of each part."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SchedulingSnapshot:
    """All facts of one round."""

    scale: Scale
    fleet: Fleet
    queues: tuple[PoolQueue, ...]
    """Departments before their projects."""
    ready: NDArray[np.bool_]
    """Which machines may carry work."""
    free: Array
    """Machines x resources: what no member holds."""
    devices: Array | None
    """Machines x GPUs: what is free of each GPU; None if no work asks for a share of one."""
    allocated: tuple[Amounts, ...]
    """By queue, with all below it."""
    guaranteed: tuple[Amounts, ...]
    """The non-preemptible part of `allocated`."""
    workloads: Mapping[WorkloadId, Workload]
    running: Mapping[QueueIndex, tuple[WorkloadId, ...]]
    """The workloads with members, by project."""
    backlog: Mapping[Kind, tuple[Line, ...]]
    """The workloads with fewer members than they ask for at most, oldest first."""
    stale: tuple[WorkloadId, ...]
    """Those that run below their minimum, sorted."""
    may_come: tuple[MachineShape, ...] = ()

    def path(self, queue: QueueIndex) -> tuple[QueueIndex, ...]:
        """A queue and all above it."""
        found = [queue]
        while (above := self.queues[found[-1]].parent) is not None:
            found.append(above)
        return tuple(found)

    def with_all_that_may_come(self, most: int) -> SchedulingSnapshot:
        """This snapshot with up to `most` more machines of each shape that may come."""
        copies = [
            each
            for each in self.may_come
            for _ in range(most if each.count is None else min(most, each.count))
        ]
        if not copies:
            return self
        fleet = self.fleet
        capacity = np.vstack([fleet.capacity, [each.capacity for each in copies]])
        whole = Fleet(
            names=(*fleet.names, *("" for _ in copies)),
            pools=(*fleet.pools, *(each.pool for each in copies)),
            labels=(*fleet.labels, *(each.labels for each in copies)),
            capacity=_frozen(capacity),
            has_gpus=_frozen(_has_gpus(capacity, self.scale)),
        )
        return replace(
            self,
            fleet=whole,
            ready=_frozen(np.append(self.ready, np.ones(len(copies), bool))),
            free=whole.capacity,
            devices=None if self.devices is None else _frozen(whole_devices(whole, self.scale)),
        )


class Facts:
    """Keeps the facts up to date by what changed, and hands out snapshots."""

    def __init__(
        self,
        scale: Scale,
        machines: Iterable[MachineSpec],
        queues: Sequence[PoolQueue],
        *,
        each_gpu: bool,
        may_come: Sequence[MachineShape] = (),
    ) -> None:
        self._scale, self._queues = scale, tuple(queues)
        self._may_come = tuple(may_come)
        self.fleet = Fleet.of(machines, scale)
        self.ready = np.ones(len(self.fleet.names), bool)
        self._free = self.fleet.capacity.copy()
        self._devices = whole_devices(self.fleet, scale) if each_gpu else None
        width = len(scale.names)
        self._allocated = [[0] * width for _ in queues]
        self._guaranteed = [[0] * width for _ in queues]
        self.workloads: dict[WorkloadId, Workload] = {}
        self._running: dict[QueueIndex, dict[WorkloadId, None]] = {}
        self._backlog: dict[Kind, list[Line]] = {}
        self._stale: set[WorkloadId] = set()
        self._gangs: dict[GangSpec, GangSpec] = {}

    def snapshot(self) -> SchedulingSnapshot:
        """The facts as they are now."""
        return SchedulingSnapshot(
            scale=self._scale,
            fleet=self.fleet,
            queues=self._queues,
            ready=_frozen(self.ready.copy()),
            free=_frozen(self._free.copy()),
            devices=None if self._devices is None else _frozen(self._devices.copy()),
            allocated=self.allocated(),
            guaranteed=tuple(map(tuple, self._guaranteed)),
            workloads=dict(self.workloads),
            running={queue: tuple(ids) for queue, ids in self._running.items() if ids},
            backlog={kind: tuple(line) for kind, line in self._backlog.items()},
            stale=tuple(sorted(self._stale)),
            may_come=self._may_come,
        )

    def allocated(self) -> tuple[Amounts, ...]:
        """What each queue holds, with all below it."""
        return tuple(map(tuple, self._allocated))

    def set_usage(self, usage: Sequence[tuple[Fraction, ...]]) -> None:
        """Say what each queue used lately, as a part of its pool's capacity."""
        self._queues = tuple(
            replace(queue, usage=used) for queue, used in zip(self._queues, usage, strict=True)
        )

    def set_capacity(self, machine: MachineIndex, capacity: Amounts) -> None:
        """Say what a machine has, as work that is no workload begins or ends there."""
        before = self.fleet.capacity
        changed = before.copy()
        changed[machine] = capacity
        fleet = replace(
            self.fleet,
            capacity=_frozen(changed),
            has_gpus=_frozen(_has_gpus(changed, self._scale)),
        )
        self._free[machine] += changed[machine] - before[machine]
        if self._devices is not None:
            there = whole_devices(fleet, self._scale)
            gpus = there.shape[1]
            self._devices = _padded(self._devices, gpus)
            used = whole_devices(self.fleet, self._scale)[machine]
            self._devices[machine, : len(used)] -= used
            self._devices[machine, :gpus] += there[machine]
        self.fleet = fleet

    def set_machines(self, machines: Iterable[MachineSpec]) -> tuple[WorkloadId, ...]:
        """Say which machines there are now; return the workloads that had members on one that is
        gone, which are removed."""
        before, after = self.fleet, Fleet.of(machines, self._scale)
        at = {name: MachineIndex(i) for i, name in enumerate(after.names)}
        moved = [at.get(name) for name in before.names]
        lost = [
            w.id for w in self.workloads.values() if any(moved[m[1]] is None for m in w.members)
        ]
        for id in lost:
            self.remove(id)
        stays = [i for i, new in enumerate(moved) if new is not None]
        to = [new for new in moved if new is not None]
        used = (before.capacity - self._free)[stays]
        self._free = after.capacity.copy()
        self._free[to] -= used
        if self._devices is not None:
            taken = _padded(whole_devices(before, self._scale), self._devices.shape[1])
            taken = (taken - self._devices)[stays]
            self._devices = _padded(whole_devices(after, self._scale), taken.shape[1])
            self._devices[to, : taken.shape[1]] -= taken
        self.fleet, self.ready = after, np.ones(len(after.names), bool)
        if to != list(range(len(moved))):
            places = dict(zip(stays, to, strict=True))
            for each in self.workloads.values():
                if each.members:
                    members = tuple(m._replace(machine=places[m.machine]) for m in each.members)
                    self.workloads[each.id] = each._replace(members=members)
        return tuple(lost)

    def add(self, workload: Workload) -> None:
        """Add a workload, with the members that run already."""
        gang = self._gangs.setdefault(workload.gang, workload.gang)
        members = self._seated(gang, workload.members)
        if gang is not workload.gang or members is not workload.members:
            workload = workload._replace(gang=gang, members=members)
        self._put(workload)

    def _seated(self, gang: GangSpec, members: tuple[Member, ...]) -> tuple[Member, ...]:
        """The members with their GPUs: those they name, or else the fullest that have room."""
        if self._devices is None or not members:
            return members
        devices = self._devices.copy()
        column = self._scale.gpu
        unit = self._scale.units[column] if column is not None else 1
        seated = []
        for member in members:
            asked = gang.parts[member.part].request[column] if column is not None else 0
            if not member.gpus:
                gpus = choose_gpus(devices[member.machine], asked, unit, spread=False)
                member = member._replace(gpus=gpus)
            take_gpus(devices, member, asked, unit)
            seated.append(member)
        return tuple(seated)

    def remove(self, id: WorkloadId) -> None:
        """Remove a workload that has ended."""
        workload = self.workloads.pop(id)
        self._count(workload, -1)
        self._unlist(workload)

    def apply(self, decision: Decision, now: float) -> None:
        """Make a decision true."""
        workload = self.workloads[decision.workload]
        match decision:
            case StartMembers():
                self._replace(workload.started(decision.members, now))
            case StopMembers():
                self._replace(workload.stopped(decision.positions, now))
            case MoveMember():
                self._replace(workload.moved(decision.position, decision.target))

    def machine_lost(self, name: str, now: float) -> tuple[WorkloadId, ...]:
        """Take a machine and the members on it away; return the workloads that lost some."""
        index = self.fleet.names.index(name)
        lost = []
        for id, workload in list(self.workloads.items()):
            gone = tuple(i for i, each in enumerate(workload.members) if each.machine == index)
            if gone:
                self._replace(workload.stopped(gone, now))
                lost.append(id)
        self.ready[index] = False
        return tuple(sorted(lost))

    def machine_back(self, name: str) -> None:
        self.ready[self.fleet.names.index(name)] = True

    def _put(self, workload: Workload) -> None:
        self.workloads[workload.id] = workload
        self._count(workload, 1)
        self._list(workload)

    def _replace(self, workload: Workload) -> None:
        before = self.workloads[workload.id]
        self._count(before, -1)
        self._unlist(before)
        self._put(workload)

    def _count(self, workload: Workload, sign: int) -> None:
        if not workload.members:
            return
        parts, gpu = workload.gang.parts, self._scale.gpu
        for member in workload.members:
            request = parts[member.part].request
            self._free[member.machine] -= np.multiply(request, sign)
            if self._devices is not None and gpu is not None:
                take_gpus(self._devices, member, sign * request[gpu], self._scale.units[gpu])
        total = workload.gang.total(workload.counts)
        queue: QueueIndex | None = workload.queue
        while queue is not None:
            _add(self._allocated[queue], total, sign)
            if not workload.preemptible:
                _add(self._guaranteed[queue], total, sign)
            queue = self._queues[queue].parent

    def _list(self, workload: Workload) -> None:
        if workload.members:
            self._running.setdefault(workload.queue, {})[workload.id] = None
        if workload.stale_since_s is not None:
            self._stale.add(workload.id)
        kind = kind_of(workload)
        if kind is not None:
            insort(self._backlog.setdefault(kind, []), (workload.submit_order, workload.id))

    def _unlist(self, workload: Workload) -> None:
        if workload.members:
            del self._running[workload.queue][workload.id]
        self._stale.discard(workload.id)
        kind = kind_of(workload)
        if kind is not None:
            line = self._backlog[kind]
            del line[bisect_left(line, (workload.submit_order, workload.id))]
            if not line:
                del self._backlog[kind]


def kind_of(workload: Workload) -> Kind | None:
    """The kind under which a workload waits; None if it has all that it asks for."""
    counts, parts = workload.counts, workload.gang.parts
    if len(parts) == 1:
        if counts[0] >= parts[0].most:
            return None
    elif all(n >= part.most for n, part in zip(counts, parts, strict=True)):
        return None
    return Kind(workload.queue, workload.gang, workload.priority, workload.preemptible, counts)


def choose_gpus(row: Array, asked: int, unit: int, *, spread: bool) -> tuple[int, ...]:
    """The GPUs of a machine that a member gets: whole ones, or one with room for its share."""
    if not asked:
        return ()
    if asked >= unit:
        whole = np.flatnonzero(row == unit)[: asked // unit]
        return tuple(whole.tolist())
    fits = np.flatnonzero(row >= asked)
    if not len(fits):
        return ()
    left = row[fits]
    return (int(fits[left.argmax() if spread else left.argmin()]),)


def take_gpus(devices: Array, member: Member, amount: int, unit: int) -> None:
    """Take what a member holds from each of its GPUs; a negative amount gives it back."""
    for gpu in member.gpus:
        devices[member.machine, gpu] -= max(-unit, min(amount, unit))


def whole_devices(fleet: Fleet, scale: Scale) -> Array:
    """What each GPU has on empty machines."""
    gpu = scale.gpu
    if gpu is None:
        return np.zeros((len(fleet.names), 0), np.int64)
    unit, held = scale.units[gpu], fleet.capacity[:, gpu]
    most = int(-(-held.max(initial=0) // unit))
    steps = np.arange(most, dtype=np.int64) * unit
    devices: Array = np.clip(held[:, None] - steps[None, :], 0, unit)
    return devices


def _padded(devices: Array, gpus: int) -> Array:
    """At least so many GPUs per machine; those that are added have nothing."""
    more = max(0, gpus - devices.shape[1])
    padded: Array = np.pad(devices, ((0, 0), (0, more)))
    return padded


def _has_gpus(capacity: Array, scale: Scale) -> NDArray[np.bool_]:
    gpu = scale.gpu
    return np.zeros(len(capacity), bool) if gpu is None else capacity[:, gpu] > 0


def _add(total: list[int], amounts: Amounts, sign: int) -> None:
    for i, amount in enumerate(amounts):
        total[i] += sign * amount


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
