"""The tree of virtual clusters of one Ray cluster: what each holds, lends and uses, exactly.

A place is a machine or a vnode; a vnode is carved out of one place of its cluster's parent. Every
operation keeps these rules, and `invariants` checks them:

* a place has capacity for all vnodes carved out of it and all work on it together;
* a child never exceeds its parent: a cluster's places lie in places of its parent;
* a cluster has at most one flexible vnode per machine, and exceeds no limit on flexible resources;
* a flexible vnode's size is its reservation plus its loans.
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
    """The ids of everything added, removed or changed."""

    machines: set[MachineId] = field(default_factory=set)
    clusters: set[ClusterId] = field(default_factory=set)
    vnodes: set[VNodeId] = field(default_factory=set)
    """Includes the vnodes whose loans have changed."""
    works: set[WorkId] = field(default_factory=set)


Key = TypeVar("Key")
Value = TypeVar("Value")


class ChangedIds(set[Value]):
    """The ids of what has changed since the last `take`."""

    def take(self) -> set[Value]:
        """Return the ids and clear the set."""
        taken = set(self)
        self.clear()
        return taken


class LedgerError(Exception):
    """An operation that the ledger's rules forbid; the caller should have checked."""


class Ledger:
    """Facts and their arithmetic; an operation keeps all rules, or raises and changes nothing."""

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
        """The sum of the vnodes carved out of each place and the work on it."""
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
        """A ledger with these contents, unchecked (`invariants.broken` checks them)."""
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
        """An independent ledger, for trials."""
        twin = Ledger(self.machines.values())
        twin.clusters, twin.vnodes = dict(self.clusters), dict(self.vnodes)
        twin.uses = dict(self.uses)
        twin._loans, twin._members = dict(self._loans), dict(self._members)
        twin._children, twin._work = dict(self._children), dict(self._work)
        twin.taken = dict(self.taken)
        return twin

    @property
    def changed(self) -> bool:
        """Whether anything has changed since the last call of `changes`."""
        return self._changed != Changes()

    @property
    def pending(self) -> Changes:
        """What has changed since the last call of `changes`."""
        return self._changed

    def changes(self) -> Changes:
        """Return what has changed since the last call, for the ledger file."""
        changed, self._changed = self._changed, Changes()
        return changed

    # -- queries ------------------------------------------------------------------------------

    def total(self, place: PlaceId) -> Resources:
        """All resources of a place."""
        if place in self.vnodes:
            return self.vnodes[VNodeId(place)].resources
        return self.machines[MachineId(place)].total

    def free(self, place: PlaceId) -> Resources:
        """The resources of a place that are not taken."""
        return self.total(place) - self.taken.get(place, Resources())

    def own(self, vnode: VNodeId) -> Resources:
        """The resources of a vnode that no child has carved out, including those that work uses."""
        works = self._work.get(vnode)
        if not works:
            return self.free(vnode)
        return self.free(vnode) + Resources.total(self.uses[work].resources for work in works)

    def carved(self, place: PlaceId) -> bool:
        """Whether a vnode is carved out of a place, or work is on it."""
        return place in self.taken or place in self._work

    def owner(self, place: PlaceId) -> ClusterId | None:
        """The cluster that a place belongs to; None for an unknown place."""
        if place in self.vnodes:
            return self.vnodes[VNodeId(place)].cluster
        return ROOT if place in self.machines else None

    def machine_of(self, place: PlaceId) -> MachineId:
        return self.vnodes[VNodeId(place)].machine if place in self.vnodes else MachineId(place)

    def labels(self, place: PlaceId) -> Mapping[str, str]:
        """The labels that selectors match."""
        if place in self.vnodes:
            return self.vnodes[VNodeId(place)].labels
        return self.machines[MachineId(place)].labels

    def of(self, cluster: ClusterId) -> tuple[VNode, ...]:
        """The vnodes of a cluster, sorted by id."""
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
        """The loans of a vnode, oldest first."""
        return self._loans.get(vnode, ())

    def loans(self) -> tuple[Loan, ...]:
        """All loans, sorted by vnode id, oldest first."""
        return tuple(loan for vnode in sorted(self._loans) for loan in self._loans[vnode])

    def unused(self, loan: Loan) -> bool:
        """Whether a loan could be returned: it is free, and is not all of a vnode in use."""
        all_of_it = loan.resources == self.vnodes[loan.vnode].resources
        fits = loan.resources.fits(self.free(loan.vnode))
        return fits and not (all_of_it and self.carved(loan.vnode))

    def children(self, cluster: ClusterId) -> tuple[ClusterId, ...]:
        """The clusters directly inside this one, sorted by id."""
        return tuple(sorted(self._children.get(cluster, ())))

    @property
    def parents(self) -> frozenset[ClusterId]:
        """The virtual clusters with others inside."""
        return frozenset(self._children) - {ROOT}

    def subtree(self, cluster: ClusterId) -> tuple[ClusterId, ...]:
        """A cluster and all below it, children before their parents."""
        below = [each for child in self.children(cluster) for each in self.subtree(child)]
        return (*below, cluster)

    def within_limits(self, cluster: ClusterId, more: Resources) -> bool:
        """Whether a cluster may hold `more` flexible resources on top."""
        known = self.clusters[cluster]
        over = known.exceeded(self.flexible_total(cluster) + more)
        return not any(more[name] for name in over) and (known.flexible or not more)

    # -- operations ---------------------------------------------------------------------------

    def machine_up(self, machine: Machine) -> None:
        """Add a machine, or update its resources and labels."""
        if not self.taken.get(machine.id, Resources()).fits(machine.total):
            raise LedgerError(f"machine {machine.id} has less than what it carries")
        self.machines[machine.id] = machine
        self._changed.machines.add(machine.id)

    def machine_down(self, machine: MachineId) -> tuple[VNode, ...]:
        """Remove a machine with its vnodes and their work; return those vnodes."""
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
        """End a virtual cluster and all below it; return them, children before parents."""
        ended = self.subtree(cluster)
        for id in ended:
            for each in self.of(id):
                self.drop(each.id)
            self._forget(id)
        return ended

    def move(self, where: Mapping[VNodeId, MachineId]) -> None:
        """Move fixed-size vnodes to other machines, all or none."""
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
        """Enlarge a flexible vnode within its place."""
        now = self.vnodes[vnode]
        if now.kind is not VNodeKind.FLEXIBLE:
            raise LedgerError(f"{vnode} keeps its size")
        self._check_limits(now.cluster, by)
        self._take(now.parent, by)
        self.vnodes[vnode] = replace(now, resources=now.resources + by)
        self._changed.vnodes.add(vnode)

    def lend(self, loan: Loan) -> None:
        """Record as a loan what a vnode has just grown by."""
        more = self.borrowed(loan.vnode) + loan.resources
        if not more.fits(self.vnodes[loan.vnode].resources):
            raise LedgerError(f"{loan.vnode} cannot have borrowed more than it holds")
        self._loans[loan.vnode] = (*self._loans.get(loan.vnode, ()), loan)
        self._changed.vnodes.add(loan.vnode)

    def give_back(self, loan: Loan) -> None:
        """Return an unused loan; a vnode without resources is removed."""
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
        """Remove a vnode, its loans and its work. Nothing may be carved out of it."""
        on_it = Resources.total(self.uses[work].resources for work in self._work.get(vnode, ()))
        if on_it != self.taken.get(vnode, Resources()):
            raise LedgerError(f"something is carved out of {vnode}")
        for work in sorted(self._work.get(vnode, ())):
            self.stop(work)
        self._loans.pop(vnode, None)
        self._uncarve(vnode)

    def start(self, work: WorkId, use: Use) -> None:
        """Record work on a vnode and the resources that it holds."""
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
        if not wanted:
            return  # work may hold no resources
        taken = self.taken.get(place, Resources()) + wanted
        if not taken.fits(self.total(place)):
            raise LedgerError(f"{place} has {self.free(place)}, wanted {wanted}")
        self.taken[place] = taken

    def _count(self, place: PlaceId, taken: Resources) -> None:
        if taken:  # work may hold no resources
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
