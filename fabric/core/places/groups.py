"""Which placement groups of Ray carry the vnodes, and how they are rebundled when vnodes change.

Bundles of placement groups carry a vnode: together what is not carved out of it. A group of
fixed-size nodes begins as one placement group, under its policy. Later ones have one bundle each:
a placement group cannot change its size, so idle ones are given up for others.

Ids are chosen here, not by Ray, so that work can wait for a placement group before it exists.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NewType, TypeVar

from ..ledger import ChangedIds, Ledger
from ..records import ROOT, ClusterId, MachineId, SchedulingPolicy, VNodeId, fixed_id
from ..resources import Resources
from ..selectors import Selector
from .nomination import Admit

GroupId = NewType("GroupId", str)
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedBundle:
    """A bundle, and what it carries."""

    vnode: VNodeId | None
    """None once its vnode is gone while other pieces of the same group are in use."""
    resources: Resources
    machine: MachineId | None = None
    """Where it has to be; without, Ray chooses among the machines that the selector allows, and
    chooses anew when one dies."""
    selector: Selector = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementGroupRecord:
    """A placement group."""

    id: GroupId
    cluster: ClusterId
    policy: SchedulingPolicy
    pieces: tuple[CarriedBundle, ...]

    @property
    def vnodes(self) -> frozenset[VNodeId]:
        return frozenset(piece.vnode for piece in self.pieces if piece.vnode is not None)

    @property
    def movable(self) -> bool:
        """Whether Ray chooses its machines."""
        return all(piece.machine is None for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Rebundling:
    """What to give up, and what to make in its place."""

    remove: tuple[GroupId, ...]
    make: tuple[PlacementGroupRecord, ...]


@dataclass(frozen=True, slots=True)
class Stuck:
    """The bundles with what a vnode has free are in use."""

    vnode: VNodeId
    lacking: Resources

    @property
    def reason(self) -> str:
        return f"{self.lacking} of {self.vnode} is free, but not in one piece: others work on it"


class PlacementGroups:
    """All placement groups of one Ray cluster that are ours, by id and by what they carry."""

    def __init__(self, groups: Iterable[PlacementGroupRecord] = ()) -> None:
        self._by_id: dict[GroupId, PlacementGroupRecord] = {}
        self._by_vnode: dict[VNodeId, dict[GroupId, None]] = {}
        self._by_cluster: dict[ClusterId, dict[GroupId, None]] = {}
        self.changed = ChangedIds[GroupId]()
        for group in groups:
            self.put(group)
        self.changed.clear()

    def __iter__(self) -> Iterator[PlacementGroupRecord]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, id: object) -> bool:
        return id in self._by_id

    def __getitem__(self, id: GroupId) -> PlacementGroupRecord:
        return self._by_id[id]

    def get(self, id: GroupId) -> PlacementGroupRecord | None:
        """A group, if it is known."""
        return self._by_id.get(id)

    def of_vnode(self, vnode: VNodeId) -> tuple[PlacementGroupRecord, ...]:
        """The groups with pieces of a vnode, oldest first."""
        return tuple(self._by_id[id] for id in self._by_vnode.get(vnode, ()))

    def of_cluster(self, cluster: ClusterId) -> tuple[PlacementGroupRecord, ...]:
        """The groups of a cluster, oldest first."""
        return tuple(self._by_id[id] for id in self._by_cluster.get(cluster, ()))

    def put(self, group: PlacementGroupRecord) -> None:
        """Add or replace a group."""
        if group.id in self._by_id:
            self.drop(group.id)
        self._by_id[group.id] = group
        self.changed.add(group.id)
        for vnode in group.vnodes:
            self._by_vnode.setdefault(vnode, {})[group.id] = None
        self._by_cluster.setdefault(group.cluster, {})[group.id] = None

    def drop(self, id: GroupId) -> None:
        """Forget a group."""
        group = self._by_id.pop(id)
        self.changed.add(id)
        for vnode in group.vnodes:
            forget(self._by_vnode, vnode, id)
        forget(self._by_cluster, group.cluster, id)

    def apply(self, cut: Rebundling) -> None:
        """Write a new cut down."""
        for id in cut.remove:
            self.drop(id)
        for group in cut.make:
            self.put(group)


@dataclass(frozen=True, slots=True)
class Either(Container[GroupId]):
    """The union of two containers, without a copy."""

    one: Container[GroupId]
    other: Container[GroupId]

    def __contains__(self, id: object) -> bool:
        return id in self.one or id in self.other


def group_id(cluster: ClusterId, random: str, job: str) -> GroupId:
    """An id for Ray that names the virtual cluster: 18 bytes, the last four are a job's."""
    return GroupId(f"{random[:20]}{_mark(cluster)}{job}")


def was_made_for(cluster: ClusterId, id: GroupId) -> bool:
    """Whether we chose a placement group's id, and for this virtual cluster."""
    return id[20:28] == _mark(cluster)


def _mark(cluster: ClusterId) -> str:
    return f"{zlib.crc32(cluster.encode()):08x}"


def groups_for(
    admitted: Admit,
    new_id: Callable[[ClusterId], GroupId],
    *,
    pinned: bool = False,
    whole: GroupId | None = None,
) -> tuple[PlacementGroupRecord, ...]:
    """The placement groups for the fixed-size nodes of an admitted virtual cluster.

    Right below the Ray cluster, Ray chooses the machines, and others when these die. Nodes that are
    `pinned` to machines of the ledger, as all inside another virtual cluster, are placement groups
    of their own: each can be made again elsewhere under its id. A placement group that a user asked
    for, whose id is `whole`, stays one.
    """
    request, vnodes = admitted.request, {vnode.id: vnode for vnode in admitted.vnodes}
    numbered = (fixed_id(request.id, number) for number in itertools.count())
    free = request.parent == ROOT and not pinned
    made = []
    for asked in request.groups:
        pieces = [
            CarriedBundle(
                vnode=id,
                resources=bundle.resources,
                machine=None if free else vnodes[id].machine,
                selector=bundle.selector if free else {},
            )
            for bundle, id in zip(asked.bundles, numbered, strict=False)
            if id in vnodes  # those that were not lost have theirs
        ]
        policy = asked.policy if free else SchedulingPolicy.PACK
        together = [pieces] if free or whole else [[piece] for piece in pieces]
        for each in filter(None, together):
            id = whole or new_id(request.id)
            made.append(
                PlacementGroupRecord(id=id, cluster=request.id, policy=policy, pieces=tuple(each))
            )
    return tuple(made)


def rebundle(
    ledger: Ledger,
    groups: PlacementGroups,
    vnodes: Iterable[VNodeId],
    new_id: Callable[[ClusterId], GroupId],
    *,
    busy: Container[GroupId] = frozenset(),
    given: Mapping[VNodeId, Resources] | None = None,
) -> Rebundling | Stuck:
    """How these vnodes get bundles for exactly what is their own.

    Groups in which work runs stay, unless their vnode is gone. `given` is what groups that are
    about to be made give to a vnode.
    """
    given = given or {}
    removed: dict[GroupId, PlacementGroupRecord] = {}
    short = dict.fromkeys(sorted(vnodes))
    for vnode in list(short):
        if vnode not in ledger.vnodes:
            gone: Iterable[PlacementGroupRecord] = groups.of_vnode(vnode)
        else:
            left = [each for each in groups.of_vnode(vnode) if each.id not in removed]
            extra = (_carried(left, vnode) + given.get(vnode, Resources())).beyond(
                ledger.own(vnode)
            )
            chosen = _cheapest(left, vnode, extra, busy)
            if chosen is None:
                return Stuck(vnode, extra)
            gone = chosen
        for group in gone:
            removed[group.id] = group
            short.update(dict.fromkeys(sorted(group.vnodes)))
    made = []
    for vnode in sorted(short):
        if vnode not in ledger.vnodes:
            continue
        there = _carried((g for g in groups.of_vnode(vnode) if g.id not in removed), vnode)
        lacking = ledger.own(vnode).beyond(there + given.get(vnode, Resources()))
        if lacking:
            made.append(_alone(ledger, vnode, lacking, new_id(ledger.vnodes[vnode].cluster)))
    return Rebundling(tuple(removed), tuple(made))


def _alone(
    ledger: Ledger, vnode: VNodeId, resources: Resources, id: GroupId
) -> PlacementGroupRecord:
    """A placement group of one bundle on the vnode's machine."""
    known = ledger.vnodes[vnode]
    piece = CarriedBundle(vnode=vnode, resources=resources, machine=known.machine)
    return PlacementGroupRecord(
        id=id, cluster=known.cluster, policy=SchedulingPolicy.PACK, pieces=(piece,)
    )


def _cheapest(
    groups: Iterable[PlacementGroupRecord],
    vnode: VNodeId,
    extra: Resources,
    busy: Container[GroupId],
) -> list[PlacementGroupRecord] | None:
    """The idle groups to give up so that a vnode loses at least this much; None if too few.

    One group that is large enough is better than several, the smallest such is best.
    """
    if not extra:
        return []
    idle = [group for group in groups if group.id not in busy]
    size = {group.id: _carried([group], vnode).size for group in idle}
    idle.sort(key=lambda group: (len(group.pieces), size[group.id], group.id))
    for group in idle:
        if extra.fits(_carried([group], vnode)):
            return [group]
    chosen: list[PlacementGroupRecord] = []
    for group in sorted(idle, key=lambda group: -size[group.id]):
        chosen.append(group)
        if extra.fits(_carried(chosen, vnode)):
            return chosen
    return None


def _carried(groups: Iterable[PlacementGroupRecord], vnode: VNodeId) -> Resources:
    return Resources.total(
        piece.resources for group in groups for piece in group.pieces if piece.vnode == vnode
    )


def forget(index: dict[Key, dict[Value, None]], key: Key, id: Value) -> None:
    """Take something out of an index, which keeps no empty entries."""
    known = index[key]
    del known[id]
    if not known:
        del index[key]
