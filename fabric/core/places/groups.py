"""Which placement groups of Ray carry the vnodes, and how they are rebundled when vnodes change.

The bundles that carry a vnode have together what is not carved out of it. A group of fixed-size
nodes begins as one placement group, under its policy; later ones have one bundle each. A placement
group cannot change its size, so idle ones are replaced. This package chooses the ids, so that work
can wait for a placement group before it exists (decision 16).
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NewType, TypeVar

from ..ledger import ChangedIds, Ledger
from ..records import ROOT, ClusterId, MachineId, SchedulingPolicy, VNode, VNodeId, fixed_id
from ..resources import Resources
from ..selectors import Selector
from .nomination import Admit

GroupId = NewType("GroupId", str)
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedBundle:
    """A bundle, and the vnode that it carries."""

    vnode: VNodeId | None
    """None if its vnode is gone while other bundles of the same group are in use."""
    resources: Resources
    machine: MachineId | None = None
    """The required machine; without one Ray chooses by the selector, and again when it dies."""
    selector: Selector = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementGroupRecord:
    """A placement group of ours."""

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
    """The placement groups to remove, and those to make instead."""

    remove: tuple[GroupId, ...]
    make: tuple[PlacementGroupRecord, ...]


@dataclass(frozen=True, slots=True)
class Stuck:
    """Work uses the bundles that carry a vnode's free resources."""

    vnode: VNodeId
    lacking: Resources

    @property
    def reason(self) -> str:
        return f"{self.lacking} of {self.vnode} is free, but not in one piece: others work on it"


class PlacementGroups:
    """All our placement groups of one Ray cluster, indexed by id, vnode and cluster."""

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
        """A group; None if it is unknown."""
        return self._by_id.get(id)

    def of_vnode(self, vnode: VNodeId) -> tuple[PlacementGroupRecord, ...]:
        """The groups that carry a vnode, oldest first."""
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
        """Remove a group."""
        group = self._by_id.pop(id)
        self.changed.add(id)
        for vnode in group.vnodes:
            forget(self._by_vnode, vnode, id)
        forget(self._by_cluster, group.cluster, id)

    def apply(self, cut: Rebundling) -> None:
        """Record a rebundling."""
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
    """An id for Ray, in hex: 10 random bytes, 4 for the virtual cluster's name, 4 for the job."""
    return GroupId(f"{random[:20]}{_mark(cluster)}{job}")


def was_made_for(cluster: ClusterId, id: GroupId) -> bool:
    """Whether we chose this id for a placement group of this virtual cluster."""
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

    Right below the Ray cluster, Ray chooses the machines, and chooses again when they die. Nodes
    `pinned` to the ledger's machines, like all inside another virtual cluster, get one placement
    group each, and so do nodes above the minimum. A placement group that a user requested, with the
    id `whole`, stays one.
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
            if id in vnodes  # nodes that were not lost keep theirs
        ]
        policy = asked.policy if free else SchedulingPolicy.PACK
        together = [pieces] if free or whole else [[piece] for piece in pieces]
        for each in filter(None, together):
            id = whole or new_id(request.id)
            made.append(
                PlacementGroupRecord(id=id, cluster=request.id, policy=policy, pieces=tuple(each))
            )
    for vnode in admitted.vnodes:
        if request.is_surplus(vnode.id):
            made.append(_on_its_own(vnode, vnode.resources, new_id(request.id)))
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
    """Give each of these vnodes bundles with exactly its own resources.

    Groups with work stay, unless their vnode is gone. `given` is what coming groups will carry.
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
            known = ledger.vnodes[vnode]
            made.append(_on_its_own(known, lacking, new_id(known.cluster)))
    return Rebundling(tuple(removed), tuple(made))


def _on_its_own(vnode: VNode, resources: Resources, id: GroupId) -> PlacementGroupRecord:
    piece = CarriedBundle(vnode=vnode.id, resources=resources, machine=vnode.machine)
    return PlacementGroupRecord(
        id=id, cluster=vnode.cluster, policy=SchedulingPolicy.PACK, pieces=(piece,)
    )


def _cheapest(
    groups: Iterable[PlacementGroupRecord],
    vnode: VNodeId,
    extra: Resources,
    busy: Container[GroupId],
) -> list[PlacementGroupRecord] | None:
    """The idle groups to remove so that a vnode loses at least `extra`; None if too few are idle.

    One large enough group beats several; among those, fewer bundles win, then a smaller size.
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
    """Remove an id from an index, which keeps no empty entries."""
    known = index[key]
    del known[id]
    if not known:
        del index[key]
