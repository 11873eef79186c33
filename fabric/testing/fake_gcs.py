"""FakeRay: a reconciler's Ray, as one object in memory, with planned faults.

It places groups as Ray does, and has the habits of Ray that matter to a reconciler:

* a placement group gets all of its places or none, and waits in line while there is no room;
* when a machine dies, Ray looks for other places only for the bundles that were there;
* requesting a group that exists changes nothing, and removing one that does not is no error;
* machines' reports may be `lag_s` old, but placing always uses the present state.

Calls take turns of the event loop before and after their effect, so that a test can stop anywhere.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..core.audit import Running
from ..core.cluster_state import JobId
from ..core.places.groups import CarriedBundle, GroupId, PlacementGroupRecord
from ..core.places.placement import Placement, fit
from ..core.records import (
    NODE_LABEL,
    Bundle,
    ClusterId,
    Machine,
    MachineId,
    ProcessId,
    SchedulingPolicy,
)
from ..core.resources import Resources
from ..core.selectors import In
from ..ray.control_plane.protocol import Observed, Seen, Shown, clear
from .fake_cluster import ManualClock

NOBODY = ClusterId("")


@dataclass
class _Held:
    group: PlacementGroupRecord
    name: str
    hosts: list[MachineId | None]
    placed: bool = False
    """Whether it has ever had all its places."""

    @property
    def state(self) -> str:
        if None not in self.hosts:
            return "created"
        return "rescheduling" if self.placed else "pending"

    @property
    def places(self) -> Iterator[tuple[int, MachineId, CarriedBundle]]:
        """The placed bundles: index, machine, bundle."""
        for n, (host, piece) in enumerate(zip(self.hosts, self.group.pieces, strict=True)):
            if host is not None:
                yield n, host, piece


@dataclass(frozen=True)
class _Told:
    """The machines' reports at one moment."""

    free: Mapping[MachineId, Resources]
    groups: Shown


@dataclass
class FakeRay:
    clock: ManualClock
    lag_s: float = 0.0
    """The age of the machines' reports about free resources and bundles."""
    prefers: Callable[[MachineId], str] = str
    """The key by which it orders machines."""
    turns: Callable[[], int] = lambda: 1
    """How many turns of the event loop pass before and after a call takes effect."""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """The calls that change something, with the ids of groups, in order."""
    reports: list[Running] = field(default_factory=list)
    """The actors and tasks that it reports as running."""
    wanted: dict[GroupId, Resources] = field(default_factory=dict)
    """The placement groups that it reports as wanted."""
    _machines: dict[MachineId, Machine] = field(default_factory=dict)
    _groups: dict[GroupId, _Held] = field(default_factory=dict)
    _uses: dict[str, tuple[MachineId, Resources]] = field(default_factory=dict)
    _jobs: dict[JobId, str] = field(default_factory=dict)
    """The running jobs, and the virtual clusters that their metadata names."""
    _actors: set[str] = field(default_factory=set)
    _processes: set[ProcessId] = field(default_factory=set)
    _work: set[GroupId] = field(default_factory=set)
    _errors: deque[tuple[str, Exception]] = field(default_factory=deque)
    _past: list[tuple[float, _Told]] = field(default_factory=list)

    # -- the protocol -----------------------------------------------------------------------------

    async def create(
        self,
        group: PlacementGroupRecord,
        name: str,
        labels: Iterable[Mapping[str, str]],
        timeout_s: float,
        /,
    ) -> bool:
        """Request a placement group; wait for its places, or until the clock passes the timeout."""
        until = self.clock() + timeout_s
        await self._pass("create", group.id)
        if not group.pieces:
            raise ValueError(f"Ray refuses placement group {group.id}: it has no bundles")
        if group.id not in self._groups:
            self._groups[group.id] = _Held(group, name, [None] * len(group.pieces))
            self._place()
        await self._pass("wait")
        while not (there := group.id in self._groups and self.state(group.id) == "created"):
            if group.id not in self._groups or self.clock() >= until:
                break
            await asyncio.sleep(0)
        await self._pass()
        return there

    async def look(self, id: GroupId, /) -> Seen | None:
        await self._pass("look")
        found = self.seen(id) if id in self._groups else None
        await self._pass()
        return found

    async def remove(self, id: GroupId, /) -> None:
        await self._pass("remove", id)
        self._groups.pop(id, None)
        self._work.discard(id)
        self._place()
        await self._pass()

    async def available(self) -> Mapping[MachineId, Resources]:
        await self._pass("available")
        return self._told().free

    async def dead(self, actors: Collection[str], /) -> frozenset[str]:
        await self._pass("dead")
        return frozenset(actors) - self._actors

    async def over(self, processes: Collection[ProcessId], /) -> frozenset[ProcessId]:
        await self._pass("over")
        return frozenset(processes) - self._processes

    async def bury(self) -> tuple[MachineId, ...]:
        return ()  # this fake notices every machine's death at once

    async def running(self, jobs: Collection[JobId], /) -> Sequence[Running]:
        await self._pass("running")
        return tuple(each for each in self.reports if each.job in jobs)

    async def observe(
        self, known: Mapping[GroupId, int], /, *, everything: bool = False
    ) -> Observed:
        await self._pass("observe")
        shown = {
            id: bundles
            for id, held in self._told().groups.items()
            if (bundles := {n: each for n, each in held.items() if each[0] in self._machines})
        }
        found = {} if everything else clear(shown, known)
        asked = self._groups if everything else {**shown, **known}
        found |= {id: self.seen(id) for id in asked if id in self._groups - found.keys()}
        seen = Observed(
            machines=tuple(self._machines[id] for id in sorted(self._machines)),
            groups=found,
            available=self._told().free,
            jobs=frozenset(self._jobs),
            named={job: name for job, name in self._jobs.items() if name},
            in_use=frozenset(self._work & self._groups.keys()),
            wanted=dict(self.wanted),
        )
        await self._pass()
        return seen

    # -- events -------------------------------------------------------------------------------

    def machine_up(self, *machines: Machine) -> None:
        self._machines.update((machine.id, machine) for machine in machines)
        self._place()

    def machine_down(self, name: str) -> None:
        id = MachineId(name)
        del self._machines[id]
        self._uses = {use: it for use, it in self._uses.items() if it[0] != id}
        for held in self._groups.values():
            held.hosts = [None if host == id else host for host in held.hosts]
        self._place()

    def use(self, name: str, machine: str, amounts: Mapping[str, float]) -> None:
        """Take resources for foreign work. ValueError if they are not free."""
        id, wanted = MachineId(machine), Resources.of(amounts)
        if name in self._uses or not wanted.fits(self.free()[id]):
            raise ValueError(f"{name} is there already, or {machine} has less than {wanted}")
        self._uses[name] = (id, wanted)
        self._place()

    def stop(self, name: str) -> None:
        del self._uses[name]
        self._place()

    def group_up(self, id: str, name: str, *bundles: Mapping[str, float]) -> None:
        pieces = tuple(CarriedBundle(vnode=None, resources=Resources.of(each)) for each in bundles)
        policy = SchedulingPolicy.PACK
        group = PlacementGroupRecord(id=GroupId(id), cluster=NOBODY, policy=policy, pieces=pieces)
        self._groups[group.id] = _Held(group, name, [None] * len(pieces))
        self._place()

    def group_down(self, id: str) -> None:
        del self._groups[GroupId(id)]
        self._work.discard(GroupId(id))
        self._place()

    def job_up(self, id: str, named: str = "") -> JobId:
        """Begin a job, perhaps with metadata that names a virtual cluster."""
        self._jobs[JobId(id)] = named
        return JobId(id)

    def job_down(self, id: str) -> None:
        self._jobs.pop(JobId(id), None)

    def process_up(self, id: str) -> ProcessId:
        self._processes.add(ProcessId(id))
        return ProcessId(id)

    def process_down(self, id: str) -> None:
        self._processes.discard(ProcessId(id))

    def work_up(self, group: str, actor: str = "") -> None:
        self._work.add(GroupId(group))
        self._actors.update({actor} - {""})

    def work_down(self, group: str, actor: str = "") -> None:
        self._work.discard(GroupId(group))
        self._actors.discard(actor)

    def fail(self, call: str, error: Exception) -> None:
        """Let the next call of this method that is not failed yet raise, and do nothing."""
        self._errors.append((call, error))

    # -- the present state --------------------------------------------------------------------

    @property
    def machines(self) -> Mapping[MachineId, Machine]:
        return dict(self._machines)

    @property
    def jobs(self) -> frozenset[JobId]:
        return frozenset(self._jobs)

    @property
    def used(self) -> tuple[str, ...]:
        return tuple(sorted(self._uses))

    def ids(self, prefix: str = "") -> set[GroupId]:
        return {id for id, held in self._groups.items() if held.name.startswith(prefix)}

    def state(self, id: GroupId) -> str:
        return self._groups[id].state

    def seen(self, id: GroupId) -> Seen:
        held = self._groups[id]
        return Seen(
            id=id,
            name=held.name,
            state=held.state,
            hosts=tuple(held.hosts),
            carries=tuple(piece.resources for piece in held.group.pieces),
            why="" if held.state == "created" else "NO_RESOURCES",
        )

    def free(self) -> dict[MachineId, Resources]:
        """The resources that are now free on each machine."""
        left = {id: machine.total for id, machine in self._machines.items()}
        taken = list(self._uses.values())
        for held in self._groups.values():
            taken += [(host, piece.resources) for _, host, piece in held.places]
        for id, resources in taken:
            left[id] -= resources  # raises if a machine carries more than it has
        return left

    # -- internals ----------------------------------------------------------------------------

    async def _pass(self, call: str = "", id: str = "") -> None:
        """Let turns of the event loop pass, then raise the error planned for this call, if any."""
        for _ in range(self.turns()):
            await asyncio.sleep(0)
        if id:
            self.calls.append((call, id))
        for planned in self._errors:
            if planned[0] == call:
                self._errors.remove(planned)
                raise planned[1]

    def _place(self) -> None:
        for held in self._groups.values():
            lacking = [n for n, host in enumerate(held.hosts) if host is None]
            found = self._find(held, lacking) if lacking else None
            if found is not None:
                for n, host in zip(lacking, found, strict=True):
                    held.hosts[n] = host
                held.placed = True
        groups = {
            id: {n: (host, piece.resources) for n, host, piece in held.places}
            for id, held in self._groups.items()
        }
        self._past.append((self.clock(), _Told(self.free(), groups)))
        while len(self._past) > 1 and self._past[1][0] <= self.clock() - self.lag_s:
            del self._past[0]

    def _find(self, held: _Held, lacking: Sequence[int]) -> Sequence[MachineId] | None:
        """Places for all unplaced bundles of a group, or None."""
        free, group = self.free(), held.group
        there = {host for host in held.hosts if host is not None}
        spread = group.policy is SchedulingPolicy.STRICT_SPREAD
        order = sorted((id for id in free if not (spread and id in there)), key=self.prefers)
        able = [
            replace(
                self._machines[id],
                id=MachineId(f"{rank:06}"),
                total=free[id],
                labels={**self._machines[id].labels, NODE_LABEL: id},
            )
            for rank, id in enumerate(order)
        ]
        bundles = [
            Bundle(
                resources=each.resources,
                selector={NODE_LABEL: In(each.machine)} if each.machine else each.selector,
            )
            for each in (group.pieces[n] for n in lacking)
        ]
        found = fit(bundles, group.policy, able)
        if not isinstance(found, Placement):
            return None
        return [order[int(rank)] for rank in found.machines]

    def _told(self) -> _Told:
        """The latest reports that are at least `lag_s` old."""
        old = [told for at, told in self._past if at <= self.clock() - self.lag_s]
        return old[-1] if old else self._past[0][1]
