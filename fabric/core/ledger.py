"""The tree of virtual clusters of one Ray cluster: what each holds, lends and uses, exactly.

A place is a machine or a vnode; a vnode is carved out of one place of its cluster's parent. Rules
that every operation keeps, and `invariants` checks:

* nothing is over capacity: what is carved out of a place and what works on it fit it together;
* a child never exceeds its parent: the places of a cluster lie in places of its parent;
* a cluster has one flexible vnode per machine at most, and holds no more flexible resources than
  its limit;
* a flexible vnode is what was reserved for it plus what it borrows, loan by loan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from .records import (
    ROOT,
    ClusterId,
    Loan,
    Machine,
    MachineId,
    PlacedCluster,
    PlaceId,
    Use,
    VNode,
    VNodeId,
    VNodeKind,
    WorkId,
    flexible_id,
)
from .resources import Resources


@dataclass(frozen=True, slots=True)
class Changes:
    """What has come, gone or changed, by name."""

    machines: set[MachineId] = field(default_factory=set)
    clusters: set[ClusterId] = field(default_factory=set)
    vnodes: set[VNodeId] = field(default_factory=set)
    """Those whose loans have changed are among them."""
    works: set[WorkId] = field(default_factory=set)


Key = TypeVar("Key")
Value = TypeVar("Value")


class ChangedIds(set[Value]):
    """Ids of what has changed since `take` was called last."""

    def take(self) -> set[Value]:
        """Return these and begin anew."""
        taken = set(self)
        self.clear()
        return taken


class LedgerError(Exception):
    """An operation that the rules of the ledger forbid; its caller had not checked."""


class Ledger:
    """Facts and their arithmetic; operations either keep all rules or raise and change nothing."""

    def __init__(self, machines: Iterable[Machine] = ()) -> None:
        self.machines: dict[MachineId, Machine] = {machine.id: machine for machine in machines}
        self.clusters: dict[ClusterId, PlacedCluster] = {}
        self.vnodes: dict[VNodeId, VNode] = {}
        self.uses: dict[WorkId, Use] = {}
        self._loans: dict[VNodeId, tuple[Loan, ...]] = {}
        """Oldest first."""
        self._members: dict[ClusterId, frozenset[VNodeId]] = {}
        self._children: dict[ClusterId, frozenset[ClusterId]] = {}
        self._work: dict[VNodeId, frozenset[WorkId]] = {}
        self.taken: dict[PlaceId, Resources] = {}
        """What is carved out of each place, and what works on it, added up."""
        self._changed = Changes(machines=set(self.machines))

    @classmethod
    def restored(
        cls,
        *,
        machines: Iterable[Machine],
        clusters: Iterable[PlacedCluster],
        vnodes: Iterable[VNode],
        loans: Iterable[Loan],
        uses: Mapping[WorkId, Use],
    ) -> Ledger:
        """A ledger with these contents, which are not checked (`invariants.broken` does)."""
        ledger = cls(machines)
        for cluster in clusters:
            ledger.clusters[cluster.id] = cluster
            _put(ledger._children, cluster.parent, cluster.id)
        for vnode in vnodes:
            ledger.vnodes[vnode.id] = vnode
            _put(ledger._members, vnode.cluster, vnode.id)
            ledger._count(vnode.parent, vnode.resources)
        for loan in loans:
            ledger._loans[loan.vnode] = (*ledger._loans.get(loan.vnode, ()), loan)
        for work, use in uses.items():
            ledger.uses[work] = use
            _put(ledger._work, use.vnode, work)
            ledger._count(use.vnode, use.resources)
        ledger.changes()
        return ledger

    def copy(self) -> Ledger:
        """A ledger of its own, to try things on."""
        twin = Ledger(self.machines.values())
        twin.clusters, twin.vnodes = dict(self.clusters), dict(self.vnodes)
        twin.uses = dict(self.uses)
        twin._loans, twin._members = dict(self._loans), dict(self._members)
        twin._children, twin._work = dict(self._children), dict(self._work)
        twin.taken = dict(self.taken)
        return twin

    @property
    def changed(self) -> bool:
        """Whether anything has changed since `changes` was asked the last time."""
        return self._changed != Changes()

    def changes(self) -> Changes:
        """What has changed since the last call, for the file of the ledger."""
        changed, self._changed = self._changed, Changes()
        return changed

    # -- what there is ------------------------------------------------------------------------

    def total(self, place: PlaceId) -> Resources:
        """All that a place has."""
        if place in self.vnodes:
            return self.vnodes[VNodeId(place)].resources
        return self.machines[MachineId(place)].total

    def free(self, place: PlaceId) -> Resources:
        """What of a place is not taken."""
        return self.total(place) - self.taken.get(place, Resources())

    def own(self, vnode: VNodeId) -> Resources:
        """What of a vnode no child has carved out; work may be on it."""
        works = self._work.get(vnode)
        if not works:
            return self.free(vnode)
        return self.free(vnode) + Resources.total(self.uses[work].resources for work in works)

    def carved(self, place: PlaceId) -> bool:
        """Whether anything is carved out of a place, or works on it."""
        return place in self.taken or place in self._work

    def owner(self, place: PlaceId) -> ClusterId | None:
        """The cluster that a place belongs to; None if there is no such place."""
        if place in self.vnodes:
            return self.vnodes[VNodeId(place)].cluster
        return ROOT if place in self.machines else None

    def machine_of(self, place: PlaceId) -> MachineId:
        return self.vnodes[VNodeId(place)].machine if place in self.vnodes else MachineId(place)

    def labels(self, place: PlaceId) -> Mapping[str, str]:
        """The labels that a selector looks at."""
        if place in self.vnodes:
            return self.vnodes[VNodeId(place)].labels
        return self.machines[MachineId(place)].labels

    def of(self, cluster: ClusterId) -> tuple[VNode, ...]:
        """The vnodes of a cluster, in the order of their names."""
        return tuple(self.vnodes[id] for id in sorted(self._members.get(cluster, ())))

    def flexible(self, cluster: ClusterId, machine: MachineId) -> VNode | None:
        return self.vnodes.get(flexible_id(cluster, machine))

    def flexible_total(self, cluster: ClusterId) -> Resources:
        return Resources.total(
            each.resources for each in self.of(cluster) if each.kind is VNodeKind.FLEXIBLE
        )

    def borrowed(self, vnode: VNodeId) -> Resources:
        return Resources.total(loan.resources for loan in self.loans_of(vnode))

    def loans_of(self, vnode: VNodeId) -> tuple[Loan, ...]:
        """The loans that a vnode has, oldest first."""
        return self._loans.get(vnode, ())

    def loans(self) -> tuple[Loan, ...]:
        """Everything that is borrowed, by the names of the vnodes, oldest first."""
        return tuple(loan for vnode in sorted(self._loans) for loan in self._loans[vnode])

    def unused(self, loan: Loan) -> bool:
        """Whether a loan could go back: it is free, and no work is on a vnode of it alone."""
        all_of_it = loan.resources == self.vnodes[loan.vnode].resources
        fits = loan.resources.fits(self.free(loan.vnode))
        return fits and not (all_of_it and self.carved(loan.vnode))

    def children(self, cluster: ClusterId) -> tuple[ClusterId, ...]:
        """The clusters that were made inside this one, in the order of their names."""
        return tuple(sorted(self._children.get(cluster, ())))

    def subtree(self, cluster: ClusterId) -> tuple[ClusterId, ...]:
        """A cluster and all below it, children before their parents."""
        below = [each for child in self.children(cluster) for each in self.subtree(child)]
        return (*below, cluster)

    def within_limits(self, cluster: ClusterId, more: Resources) -> bool:
        """Whether a cluster may hold so many more flexible resources."""
        known = self.clusters[cluster]
        over = known.exceeded(self.flexible_total(cluster) + more)
        return not any(more[name] for name in over) and (known.flexible or not more)

    # -- what happens -------------------------------------------------------------------------

    def machine_up(self, machine: Machine) -> None:
        """Add a machine, or note its new resources and labels."""
        if not self.taken.get(machine.id, Resources()).fits(machine.total):
            raise LedgerError(f"machine {machine.id} has less than what it carries")
        self.machines[machine.id] = machine
        self._changed.machines.add(machine.id)

    def machine_down(self, machine: MachineId) -> tuple[VNode, ...]:
        """Remove a machine with its vnodes and their work; returns those vnodes."""
        del self.machines[machine]
        self._changed.machines.add(machine)
        mine = [each for each in self.vnodes.values() if each.machine == machine]
        lost = sorted(mine, key=lambda each: (-self._depth(each.cluster), each.id))
        for each in lost:
            self.drop(each.id)
        return tuple(lost)

    def begin(self, cluster: PlacedCluster, vnodes: Iterable[VNode]) -> None:
        """Add a virtual cluster with all its places, or raise and add nothing."""
        if cluster.id in self.clusters or cluster.id == ROOT:
            raise LedgerError(f"there is a cluster {cluster.id}")
        if cluster.parent != ROOT and cluster.parent not in self.clusters:
            raise LedgerError(f"there is no cluster {cluster.parent}")
        self.clusters[cluster.id] = cluster
        self._changed.clusters.add(cluster.id)
        _put(self._children, cluster.parent, cluster.id)
        try:
            self._add_all(vnodes)
        except LedgerError:
            self._forget(cluster.id)
            raise

    def end(self, cluster: ClusterId) -> tuple[ClusterId, ...]:
        """End a virtual cluster and all below it; returns them, children before parents."""
        ended = self.subtree(cluster)
        for id in ended:
            for each in self.of(id):
                self.drop(each.id)
            self._forget(id)
        return ended

    def move(self, where: Mapping[VNodeId, MachineId]) -> None:
        """Move fixed-size vnodes from their machines to others, all or none."""
        before = {id: self.vnodes[id] for id in where}
        if any(self.carved(id) or each.parent != each.machine for id, each in before.items()):
            raise LedgerError("only unused vnodes on machines can move")
        for id in before:
            self._uncarve(id)
        try:
            self._add_all(
                replace(each, parent=where[id], machine=where[id]) for id, each in before.items()
            )
        except LedgerError:
            self._add_all(before.values())
            raise

    def add(self, each: VNode) -> None:
        """Add a vnode to its cluster."""
        cluster = self.clusters.get(each.cluster)
        if cluster is None or each.id in self.vnodes or not each.resources:
            raise LedgerError(f"{each.id} exists, is empty, or belongs to no cluster")
        if self.owner(each.parent) != cluster.parent:
            raise LedgerError(f"{each.parent} is no place of {cluster.parent}")
        if each.machine != self.machine_of(each.parent):
            raise LedgerError(f"{each.parent} is not on {each.machine}")
        if each.kind is VNodeKind.FLEXIBLE:
            if each.id != flexible_id(each.cluster, each.machine):
                raise LedgerError(f"{each.id} is not what a flexible vnode there is called")
            self._check_limits(each.cluster, each.resources)
        self._take(each.parent, each.resources)
        self.vnodes[each.id] = each
        self._changed.vnodes.add(each.id)
        _put(self._members, each.cluster, each.id)

    def _add_all(self, vnodes: Iterable[VNode]) -> None:
        """Add all of these or none."""
        done: list[VNodeId] = []
        try:
            for each in vnodes:
                self.add(each)
                done.append(each.id)
        except LedgerError:
            for id in reversed(done):
                self._uncarve(id)
            raise

    def grow(self, vnode: VNodeId, by: Resources) -> None:
        """Enlarge a flexible vnode out of its place."""
        now = self.vnodes[vnode]
        if now.kind is not VNodeKind.FLEXIBLE:
            raise LedgerError(f"{vnode} keeps its size")
        self._check_limits(now.cluster, by)
        self._take(now.parent, by)
        self.vnodes[vnode] = replace(now, resources=now.resources + by)
        self._changed.vnodes.add(vnode)

    def lend(self, loan: Loan) -> None:
        """Record that a vnode has borrowed what it has just got."""
        more = self.borrowed(loan.vnode) + loan.resources
        if not more.fits(self.vnodes[loan.vnode].resources):
            raise LedgerError(f"{loan.vnode} cannot have borrowed more than it holds")
        self._loans[loan.vnode] = (*self._loans.get(loan.vnode, ()), loan)
        self._changed.vnodes.add(loan.vnode)

    def give_back(self, loan: Loan) -> None:
        """Give an unused loan back; a vnode with nothing left is removed."""
        now, loans = self.vnodes[loan.vnode], list(self._loans.get(loan.vnode, ()))
        if loan not in loans or not self.unused(loan):
            raise LedgerError(f"{loan.vnode} has no such loan, or uses it")
        loans.remove(loan)
        self._changed.vnodes.add(loan.vnode)
        self._loans[loan.vnode] = tuple(loans)
        if not loans:
            del self._loans[loan.vnode]
        left = now.resources - loan.resources
        if left:
            self._release(now.parent, loan.resources)
            self.vnodes[loan.vnode] = replace(now, resources=left)
        else:
            self._uncarve(loan.vnode)

    def drop(self, vnode: VNodeId) -> None:
        """Remove a vnode, its loans and its work; nothing may be carved out of it."""
        on_it = Resources.total(self.uses[work].resources for work in self._work.get(vnode, ()))
        if on_it != self.taken.get(vnode, Resources()):
            raise LedgerError(f"something is carved out of {vnode}")
        for work in sorted(self._work.get(vnode, ())):
            self.stop(work)
        self._loans.pop(vnode, None)
        self._uncarve(vnode)

    def start(self, work: WorkId, use: Use) -> None:
        """Record work on a vnode, and what it holds of it."""
        if work in self.uses or use.vnode not in self.vnodes:
            raise LedgerError(f"work {work} has begun already, or there is no {use.vnode}")
        self._take(use.vnode, use.resources)
        self.uses[work] = use
        self._changed.works.add(work)
        _put(self._work, use.vnode, work)

    def stop(self, work: WorkId) -> None:
        use = self.uses.pop(work)
        self._changed.works.add(work)
        _drop(self._work, use.vnode, work)
        self._release(use.vnode, use.resources)

    def _depth(self, cluster: ClusterId) -> int:
        depth = 0
        while cluster != ROOT:
            cluster, depth = self.clusters[cluster].parent, depth + 1
        return depth

    def _forget(self, cluster: ClusterId) -> None:
        _drop(self._children, self.clusters.pop(cluster).parent, cluster)
        self._changed.clusters.add(cluster)

    def _check_limits(self, cluster: ClusterId, more: Resources) -> None:
        if not self.within_limits(cluster, more):
            raise LedgerError(f"{cluster} may not hold {more} more")

    def _uncarve(self, vnode: VNodeId) -> None:
        if self.carved(vnode):
            raise LedgerError(f"something is carved out of {vnode}")
        each = self.vnodes.pop(vnode)
        self._changed.vnodes.add(vnode)
        _drop(self._members, each.cluster, vnode)
        self._release(each.parent, each.resources)

    def _take(self, place: PlaceId, wanted: Resources) -> None:
        if not (self.taken.get(place, Resources()) + wanted).fits(self.total(place)):
            raise LedgerError(f"{place} has {self.free(place)}, wanted {wanted}")
        self._count(place, wanted)

    def _count(self, place: PlaceId, taken: Resources) -> None:
        if taken:  # work may hold nothing
            self.taken[place] = self.taken.get(place, Resources()) + taken

    def _release(self, place: PlaceId, given: Resources) -> None:
        if given == self.taken.get(place, Resources()):
            self.taken.pop(place, None)
        elif given:
            self.taken[place] -= given


def _put(index: dict[Key, frozenset[Value]], key: Key, value: Value) -> None:
    index[key] = index.get(key, frozenset()) | {value}


def _drop(index: dict[Key, frozenset[Value]], key: Key, value: Value) -> None:
    left = index[key] - {value}
    if left:
        index[key] = left
    else:
        del index[key]
