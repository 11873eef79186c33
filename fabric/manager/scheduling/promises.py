"""Which promised places and which notices still hold, and who leaves now. Pure.

A claimant is promised places that others hold until they leave. All of its victims leave in one
step, so none leaves for a claimant that then does not start. A notice whose claimant has ended, has
got its places otherwise, or can no longer get them, is withdrawn. A victim that goes on elsewhere
leaves only once its new places are free, too; if they no longer are promised to it, none leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace

from ...core.cluster_state import ClusterState, Entry, Notice
from ...core.ledger import Ledger
from ...core.records import ROOT, ClusterId, MachineId, VNode, VNodeId, VNodeKind
from ...core.resources import Resources


@dataclass(frozen=True, slots=True)
class Overdue:
    """What no longer holds, and what is due."""

    dropped: tuple[ClusterId, ...]
    """Those whose promised places will not be free."""
    withdrawn: tuple[tuple[ClusterId, Notice], ...]
    """Those that need not leave."""
    leaving: tuple[tuple[ClusterId, Notice], ...]
    """Those that leave now, single nodes first."""
    blocked: frozenset[MachineId] = frozenset()
    """Machines without room for those that would go on there now."""


def overdue(
    state: ClusterState,
    now: float,
    lacking: Collection[ClusterId],
    stuck: Container[VNodeId] = (),
) -> Overdue:
    """Compare promises and notices with the ledger.

    `lacking` have lost some of their nodes; loans of `stuck` vnodes could not be returned.
    """
    if not state.index.moving:
        return Overdue((), (), ())
    room = Rooms(state, stuck)
    moving = state.in_order(state.index.moving)
    noticed = [(each.request.id, notice) for each in moving for notice in each.notices]
    noticed.sort(key=lambda each: each[1].node is None)
    in_vain = {each.claimant for _, each in noticed if _in_vain(each, state.ledger, now)}
    without = {each.request.id for each in promised(state) if not room.take(each.promised)}
    in_vain |= {
        e.leaves.claimant for e in moving if e.leaves and e.relocates and e.request.id in without
    }
    claims = [each.request.id for each in promised(state) if not each.relocates]
    dropped = [id for id in claims if id in without or id in in_vain]
    kept = {*claims} - set(dropped)
    held, withdrawn = list[tuple[ClusterId, Notice]](), list[tuple[ClusterId, Notice]]()
    for each in noticed:
        id, notice = each
        holds = _holds(id, notice, kept, lacking)
        if state.entries[id].relocates and notice.node is None:  # none moves for who gets nothing
            holds = holds and notice.claimant not in {*dropped, *in_vain}
        (held if holds else withdrawn).append(each)
    leaving = list(_leaving(held, state.ledger, now))
    blocked = _blocked(state, {notice.claimant for _, notice in leaving})
    leaving = [each for each in leaving if each[1].claimant not in blocked]
    full = frozenset().union(*blocked.values())
    return Overdue(tuple(dropped), tuple(withdrawn), tuple(leaving), full)


def promised(state: ClusterState) -> Iterator[Entry]:
    """The entries that are promised places, in the order of their requests."""
    return (each for each in state.in_order(state.index.moving) if each.promised)


def without_room(state: ClusterState, vnodes: Collection[VNode]) -> set[MachineId]:
    """The machines that have no room for these vnodes now."""
    ledger, needs = state.ledger, _by_machine(vnodes)
    return {
        machine
        for machine, need in needs.items()
        if machine not in ledger.machines or not need.fits(ledger.free(machine))
    }


class Rooms:
    """What machines have free once all under notice have left, and idle loans are returned."""

    def __init__(self, state: ClusterState, stuck: Container[VNodeId] = ()) -> None:
        """Loans of `stuck` vnodes are not returned."""
        self._ledger = ledger = state.ledger
        self._stuck = stuck
        self._changed: dict[MachineId, Resources] = {}
        """What machines have free where that is not what they have now."""
        lent = {ledger.vnodes[loan.vnode].cluster for loan in ledger.loans()}
        ids = {*state.index.moving, *lent} & state.entries.keys()
        for entry in (state.entries[id] for id in ids):
            if entry.request.parent == ROOT:
                self.leaves(freed(entry, ledger, stuck))

    def leaves(self, vnodes: Collection[VNode]) -> None:
        """These vnodes leave, too."""
        for machine, held in _by_machine(vnodes).items():
            if machine in self._ledger.machines:
                self._changed[machine] = self._free(machine) + held

    def noticed(self, before: Entry, after: Entry) -> None:
        """More of a virtual cluster leaves."""
        gave = _by_machine(freed(before, self._ledger, self._stuck))
        for machine, held in _by_machine(freed(after, self._ledger, self._stuck)).items():
            if machine in self._ledger.machines:
                more = held - gave.get(machine, Resources())
                self._changed[machine] = self._free(machine) + more

    def copy(self) -> Rooms:
        """The same, for a trial."""
        twin = copy(self)
        twin._changed = dict(self._changed)
        return twin

    def take(self, vnodes: Collection[VNode]) -> bool:
        """Take the room of these vnodes, all or nothing; False if there is too little."""
        needs = _by_machine(vnodes)
        there = self._ledger.machines
        if not all(m in there and need.fits(self._free(m)) for m, need in needs.items()):
            return False
        for machine, need in needs.items():
            self._changed[machine] = self._free(machine) - need
        return True

    def _free(self, machine: MachineId) -> Resources:
        known = self._changed.get(machine)
        return self._ledger.free(machine) if known is None else known


def leaving_of(entry: Entry, ledger: Ledger) -> tuple[VNode, ...]:
    """The vnodes of a virtual cluster that are under notice; of a flexible one what it borrowed."""
    held = ledger.of(entry.request.id)
    if entry.leaves is not None:
        return held
    nodes = {notice.node for notice in entry.nodes_leave}
    return tuple(_alone(vnode, ledger) for vnode in held if vnode.id in nodes)


def _alone(vnode: VNode, ledger: Ledger) -> VNode:
    """What leaves of a vnode that is itself under notice."""
    if vnode.kind is VNodeKind.FIXED:
        return vnode
    return replace(vnode, resources=ledger.borrowed(vnode.id))


def freed(entry: Entry, ledger: Ledger, stuck: Container[VNodeId]) -> list[VNode]:
    """What is free once all of a virtual cluster that is under notice has left, and its idle loans
    are returned; loans of `stuck` vnodes are not."""
    found = {vnode.id: vnode for vnode in leaving_of(entry, ledger)}
    for vnode in ledger.of(entry.request.id):
        if vnode.id not in found and (idle := idle_of(vnode, ledger, stuck)):
            found[vnode.id] = replace(vnode, resources=idle)
    return list(found.values())


def idle_of(vnode: VNode, ledger: Ledger, stuck: Container[VNodeId]) -> Resources:
    """What a vnode has borrowed and could return; nothing if it is `stuck`."""
    loans = () if vnode.id in stuck else ledger.loans_of(vnode.id)
    return Resources.total(loan.resources for loan in loans if ledger.unused(loan))


def leaving_for(state: ClusterState) -> dict[ClusterId, list[VNode]]:
    """The vnodes that leave, by the claimant that they leave for."""
    found: dict[ClusterId, list[VNode]] = {}
    for entry in [state.entries[id] for id in state.index.moving]:
        held = state.ledger.of(entry.request.id) if entry.notices else ()
        for notice in entry.notices:
            if notice.claimant is not None:
                if notice.node is None:
                    mine = [*held]
                else:
                    mine = [_alone(each, state.ledger) for each in held if each.id == notice.node]
                found.setdefault(notice.claimant, []).extend(mine)
    return found


def _by_machine(vnodes: Collection[VNode]) -> dict[MachineId, Resources]:
    needs: dict[MachineId, list[Resources]] = {}
    for vnode in vnodes:
        needs.setdefault(vnode.machine, []).append(vnode.resources)
    return {machine: Resources.total(each) for machine, each in needs.items()}


def _holds(
    id: ClusterId, notice: Notice, kept: Collection[ClusterId], lacking: Collection[ClusterId]
) -> bool:
    if notice.claimant is None:
        return id in lacking
    return notice.claimant in kept or notice.claimant in lacking


def _leaving(
    notices: Collection[tuple[ClusterId, Notice]], ledger: Ledger, now: float
) -> Iterator[tuple[ClusterId, Notice]]:
    """Those whose claimant's victims are all ready, or out of time."""
    late = {
        notice.claimant or id
        for id, notice in notices
        if not (notice.stops and notice.at <= now)
        if not _has_ended(notice, ledger)
    }
    return ((id, notice) for id, notice in notices if (notice.claimant or id) not in late)


def _blocked(
    state: ClusterState, due: Collection[ClusterId | None]
) -> dict[ClusterId | None, set[MachineId]]:
    """The claimants of which some victim could not go on elsewhere now, and the full machines.

    What is free now is first for claimants without victims, then for those whose victims leave now.
    """
    movers: dict[ClusterId | None, list[VNode]] = {}
    for entry in (state.entries[id] for id in state.index.moving):
        if entry.leaves is not None and entry.relocates:
            movers.setdefault(entry.leaves.claimant, []).extend(entry.promised)
    found = dict[ClusterId | None, set[MachineId]]()
    if not movers.keys() & {*due}:
        return found
    ledger, leaving, free = state.ledger, leaving_for(state), dict[MachineId, Resources]()

    def left(come: Sequence[VNode], gone: Sequence[VNode]) -> set[MachineId]:
        """Take places once others have left theirs; the machines that are too full."""
        needs, gives, full = _by_machine(come), _by_machine(gone), set[MachineId]()
        for machine in needs.keys() | gives.keys():
            there = ledger.free(machine) if machine in ledger.machines else Resources()
            there = free.get(machine, there) + gives.get(machine, Resources())
            need = needs.get(machine, Resources())
            free[machine] = there.beyond(need)
            if not need.fits(there):
                full.add(machine)
        return full

    claims = {each.request.id: each.promised for each in promised(state) if not each.relocates}
    for id in claims.keys() - leaving.keys():
        left(claims[id], ())
    known = [id for id in due if id is not None]
    for mine in sorted(known, key=lambda id: (id in movers, id)):
        before = dict(free)
        full = left([*claims.get(mine, ()), *movers.get(mine, ())], leaving.get(mine, ()))
        if full and mine in movers:
            found[mine] = full
            free = before
    return found


def _in_vain(notice: Notice, ledger: Ledger, now: float) -> bool:
    """Whether a node has not become idle that leaves only if it does."""
    return not notice.stops and notice.at <= now and not _has_ended(notice, ledger)


def _has_ended(notice: Notice, ledger: Ledger) -> bool:
    """Whether nothing runs any more on what leaves."""
    if notice.node is None or not notice.ready:
        return notice.ready
    vnode = ledger.vnodes.get(notice.node)
    if vnode is not None and vnode.kind is VNodeKind.FLEXIBLE:
        return all(ledger.unused(loan) for loan in ledger.loans_of(vnode.id))
    return not ledger.carved(notice.node)
