"""The places that a virtual cluster would get if it were admitted now, or why it does not fit.

It gets `flex_resource_min` and all fixed-size nodes, or nothing. Its parent's flexible vnodes may
grow for it. Only `apply` changes the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from ..ledger import Ledger
from ..records import (
    ROOT,
    BundleGroup,
    ClusterId,
    Machine,
    MachineId,
    PlaceId,
    SchedulingPolicy,
    VNode,
    VNodeId,
    VNodeKind,
    fixed_id,
    flexible_id,
    number_of,
)
from ..resources import UNIT, Resources
from .borrowing import Growth, Unmet, borrow, capacity, find_growth, obtainable
from .gpus import free_gpus, obtainable_gpus
from .placement import GPU, Misfit, Placement, Undecided, each_gpu, fit_all
from .request import Request


@dataclass(frozen=True, slots=True)
class Admit:
    """It gets these vnodes after its parents have grown as in `growths`."""

    request: Request
    growths: tuple[Growth, ...]
    vnodes: tuple[VNode, ...]


@dataclass(frozen=True, slots=True)
class DoesNotFit:
    """It does not fit."""

    reason: str
    most: int
    """How many of its fixed-size nodes would fit together."""
    proven: bool = False
    """Whether it is proven that its nodes cannot fit; otherwise the search found no way."""


def place(
    ledger: Ledger,
    request: Request,
    fragmented: Container[MachineId] = frozenset(),
    *,
    idle: bool = False,
) -> Admit | DoesNotFit:
    """Find places for everything that a request needs, without changing the ledger.

    Its parent grows for it only if necessary. On an `idle` ledger, which no other cluster uses, a
    reason names total amounts instead of free ones.
    """
    if request.parent != ROOT:
        trial = _Trial(ledger.copy(), request, fragmented, growing=False)
        if not (trial.fixed() or trial.flexible()):
            return trial.admitted()
    trial = _Trial(ledger.copy(), request, fragmented, idle=idle)
    return trial.fixed() or trial.flexible() or trial.admitted()


def lost_nodes(ledger: Ledger, request: Request) -> list[int]:
    """The numbers of the fixed-size nodes of its minimum that have no place."""
    there, id = ledger.vnodes, request.id
    return [n for n in range(request.minimum) if fixed_id(id, n) not in there]


def lacking(ledger: Ledger, request: Request) -> tuple[list[int], Resources]:
    """The numbers of the fixed-size nodes, and the flexible resources, that it has lost.

    A node above the minimum of a group counts for one of the minimum that was lost.
    """
    missing = lost_nodes(ledger, request)
    if missing and request.elastic:
        spare = Counter(
            request.group_of(number_of(each.id))
            for each in ledger.of(request.id)
            if request.is_surplus(each.id)
        )
        missing = [n for n in missing if not _covered_by(spare, request.group_of(n))]
    return missing, request.least.beyond(ledger.flexible_total(request.id))


def _covered_by(spare: Counter[int], group: int) -> bool:
    """Whether a group has a node to spare, which is used up then."""
    spare[group] -= 1
    return spare[group] >= 0


def refill(
    ledger: Ledger, request: Request, missing: Sequence[int], least: Resources
) -> Admit | DoesNotFit:
    """Find new places for what a cluster lost; strict policies include the nodes that remain."""
    trial = _Trial(ledger.copy(), replace(request, least=least))
    return trial.again(missing) or trial.flexible() or trial.admitted()


def never(ledger: Ledger, request: Request) -> DoesNotFit | None:
    """Why a request cannot fit even in a parent that is otherwise empty; None if unproven."""
    above, chain = request.parent, list[ClusterId]()
    while above != ROOT:
        chain.insert(0, above)
        above = ledger.clusters[above].parent
    idle = Ledger(ledger.machines.values()) if ledger.clusters else ledger
    for id in chain:
        idle.begin(ledger.clusters[id], ledger.of(id))
        for vnode in ledger.of(id):
            for loan in ledger.loans_of(vnode.id):
                idle.lend(loan)
    found = place(idle, request, idle=True)
    if isinstance(found, Admit):
        return None
    return found if found.proven or _Trial(idle, request).too_large() else None


def apply(ledger: Ledger, admitted: Admit, until: float) -> None:
    """Record an admission; its parents' loans are due at `until`."""
    for growth in admitted.growths:
        borrow(ledger, growth, until)
    if admitted.request.id not in ledger.clusters:
        ledger.begin(admitted.request.cluster, admitted.vnodes)
        return
    for each in admitted.vnodes:
        known = ledger.vnodes.get(each.id)
        if known is None:
            ledger.add(each)
        else:
            ledger.grow(each.id, each.resources)


class _Trial:
    """A request that takes its places on a copy of the ledger, one after the other."""

    def __init__(
        self,
        ledger: Ledger,
        request: Request,
        fragmented: Container[MachineId] = frozenset(),
        *,
        growing: bool = True,
        idle: bool = False,
    ) -> None:
        self._ledger = ledger
        self._request = request
        self._fragmented = fragmented
        self._wants_gpus = bool(request.needs[GPU])
        self._growing = growing
        self._idle = idle
        self._growths: list[Growth] = []
        self._vnodes: list[VNode] = []
        if request.id not in ledger.clusters:
            ledger.begin(request.cluster, ())

    def admitted(self) -> Admit:
        return Admit(self._request, tuple(self._growths), tuple(self._vnodes))

    def fixed(self) -> DoesNotFit | None:
        nodes = [bundle for group in self._request.groups for bundle in group.bundles]
        if not nodes:
            return None
        rooms = self._rooms()
        if not rooms and self._ledger.machines:
            return DoesNotFit("nothing is free", 0, proven=True)
        found = _fit(self._request.groups, rooms, free=not self._idle)
        if isinstance(found, DoesNotFit):
            return found
        labels = self._request.labels or ({},) * len(nodes)
        for index, (node, own, where) in enumerate(zip(nodes, labels, found.machines, strict=True)):
            id = fixed_id(self._request.id, index)
            refused = self._take(id, VNodeKind.FIXED, rooms[where], node.resources, own)
            if refused is not None:
                return replace(refused, most=index)
        return None

    def again(self, missing: Sequence[int]) -> DoesNotFit | None:
        number = 0
        for group in self._request.groups:
            ids = [fixed_id(self._request.id, number + n) for n in range(len(group.bundles))]
            for n, node in enumerate(group.bundles):
                if number + n not in missing:
                    continue
                there = [self._ledger.vnodes[id].parent for id in ids if id in self._ledger.vnodes]
                rooms = {
                    id: room
                    for id, room in self._rooms().items()
                    if group.policy is not SchedulingPolicy.STRICT_SPREAD or room.place not in there
                    if group.policy is not SchedulingPolicy.STRICT_PACK
                    or not there
                    or room.place in there
                }
                one = BundleGroup(bundles=(node,), policy=SchedulingPolicy.PACK)
                found = _fit([one], rooms, free=True)
                if isinstance(found, DoesNotFit):
                    return DoesNotFit(f"node {number + n}: {found.reason}", 0)
                own = self._request.labels[number + n] if self._request.labels else {}
                where = rooms[found.machines[0]]
                refused = self._take(ids[n], VNodeKind.FIXED, where, node.resources, own)
                if refused is not None:
                    return refused
            number += len(ids)
        return None

    def flexible(self) -> DoesNotFit | None:
        """Take `flex_resource_min` out of as few places as possible, the most useful first."""
        rest, used = self._request.least, set[MachineId]()
        while rest:
            rooms = [
                room
                for room in self._rooms().values()
                if room.machine not in used and self._may_be_in(room)
            ]
            best = max(rooms, key=lambda room: _covered(rest, room), default=None)
            part = Resources() if best is None else _part(rest, best)
            if best is None or not part:
                return DoesNotFit(self._too_little(), 0)
            used.add(best.machine)
            id = flexible_id(self._request.id, best.machine)
            refused = self._take(id, VNodeKind.FLEXIBLE, best, part, {})
            if refused is not None:
                return refused
            rest -= part
        return None

    def _may_be_in(self, room: _ParentPlace) -> bool:
        """Whether the request's flexible vnode on the machine is, or could be, in this room."""
        there = self._ledger.flexible(self._request.id, room.machine)
        return there is None or there.parent == room.place

    def too_large(self) -> bool:
        """Whether it needs more than its whole parent has, wherever its places are."""
        on: dict[MachineId, Resources] = {}
        for room in self._rooms().values():
            on[room.machine] = on.get(room.machine, Resources()) | room.seen.total
        least, needs = self._request.least, self._request.needs
        have = Resources.total(on.values())
        return not (least.fits(have) and needs.fits(capacity(self._ledger, self._request.parent)))

    def _too_little(self) -> str:
        least, found = self._request.least, self._ledger.flexible_total(self._request.id)
        beside = "beside its fixed-size nodes " if self._request.groups else ""
        room = f"{found} only" if found else "none of it"
        return f"{beside}it needs {least}, and there is room for {room}"

    def _take(
        self,
        id: VNodeId,
        kind: VNodeKind,
        room: _ParentPlace,
        resources: Resources,
        own: Mapping[str, str],
    ) -> DoesNotFit | None:
        """Carve a vnode out of a room, which grows first if necessary."""
        if room.grows:
            grown = find_growth(
                self._ledger,
                self._request.parent,
                resources,
                allowed=lambda machine: machine.id == room.machine,
                fragmented=self._fragmented,
            )
            if isinstance(grown, Unmet):
                return DoesNotFit(grown.reason, 0)
            if grown.steps:
                borrow(self._ledger, grown, 0.0)
                self._growths.append(grown)
        carved = VNode(
            id=id,
            cluster=self._request.id,
            parent=room.place,
            machine=room.machine,
            kind=kind,
            resources=resources,
            labels={**room.seen.labels, **own},
        )
        if id in self._ledger.vnodes:
            self._ledger.grow(id, resources)
        else:
            self._ledger.add(carved)
        self._vnodes.append(carved)
        return None

    def _rooms(self) -> dict[MachineId, _ParentPlace]:
        """The parent's places, with what they have free or could get."""
        ledger, parent = self._ledger, self._request.parent
        if parent == ROOT:
            places: list[PlaceId] = [*sorted(ledger.machines)]
            growing = list[_ParentPlace]()
        else:
            places = [each.id for each in ledger.of(parent) if each.kind is VNodeKind.FIXED]
            growing = [self._growing_on(machine) for machine in sorted(ledger.machines)]
        gpus = free_gpus(ledger, places, self._fragmented) if self._wants_gpus else {}
        rooms = [_ParentPlace.of(ledger, place, gpus.get(place, ())) for place in places]
        return {room.seen.id: room for room in (*rooms, *growing) if room.seen.total}

    def _growing_on(self, machine: MachineId) -> _ParentPlace:
        """The parent's flexible vnode on a machine, which may not exist yet."""
        ledger, parent = self._ledger, self._request.parent
        id = flexible_id(parent, machine)
        if self._growing:
            free = obtainable(ledger, parent, machine)
        else:
            free = ledger.free(id) if id in ledger.vnodes else Resources()
        labels = ledger.labels(id if id in ledger.vnodes else machine)
        seen = Machine(id=MachineId(id), hostname=id, total=free, labels=labels)
        return _ParentPlace(
            place=id, machine=machine, seen=seen, gpus=each_gpu(free[GPU]), grows=True
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParentPlace:
    """A place of the parent, presented to placement as a machine with its free resources."""

    place: PlaceId
    machine: MachineId
    seen: Machine
    gpus: tuple[int, ...]
    """What is free of each GPU."""
    grows: bool = False
    """Whether it is a flexible vnode, which may have to be enlarged or made first."""

    @classmethod
    def of(cls, ledger: Ledger, place: PlaceId, gpus: tuple[int, ...]) -> _ParentPlace:
        seen = Machine(
            id=MachineId(place),
            hostname=str(place),
            total=ledger.free(place),
            labels=ledger.labels(place),
        )
        return cls(place=place, machine=ledger.machine_of(place), seen=seen, gpus=gpus)


def _fit(
    groups: Sequence[BundleGroup], rooms: Mapping[MachineId, _ParentPlace], *, free: bool
) -> Placement | DoesNotFit:
    gpus = {id: room.gpus for id, room in rooms.items()}
    match fit_all(groups, [room.seen for room in rooms.values()], gpus=gpus, free=free):
        case Placement() as found:
            return found
        case Misfit(reason, most):
            return DoesNotFit(reason, most, proven=True)
        case Undecided(most):
            return DoesNotFit(
                f"no places were found for more than {most} of its nodes at once", most
            )


def _covered(rest: Resources, room: _ParentPlace) -> tuple[float, str]:
    """How much of the rest a room can give, as a sum of shares; ties go to the last id."""
    part = _part(rest, room)
    return sum(part[name] / amount for name, amount in rest.units), str(room.place)


def _part(rest: Resources, room: _ParentPlace) -> Resources:
    """What a place gives of the rest: per resource all of it, or the whole units that are free."""
    free = room.seen.total
    return Resources(
        tuple(
            (name, given)
            for name, amount in rest.units
            if (
                given := obtainable_gpus(amount, room.gpus)
                if name == GPU
                else amount
                if amount <= free[name]
                else free[name] - free[name] % UNIT
            )
        )
    )
