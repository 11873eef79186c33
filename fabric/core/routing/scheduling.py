"""Chooses where a task or an actor runs: in a bundle, in Ray's queue, or in a group of its own.

Work goes into a bundle with room for all of it, otherwise into a new one on a vnode, for which the
virtual cluster may grow. Otherwise it waits, in the queue of a group or for its own (decision 16).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from ..ledger import Ledger
from ..places.borrowing import Growth, Unmet, find_growth
from ..places.groups import GroupId, PlacementGroupRecord, PlacementGroups
from ..records import ClusterId, Machine, VNode, VNodeId, VNodeKind, flexible_id
from ..resources import Resources
from ..selectors import Selector
from .eligibility import Never, allowed_machines, allows, names_machines, never
from .work_table import Load

SOMETHING = Resources.of({"CPU": 0.0001})
"""What work without demands gets where it needs a placement group, which cannot be empty."""

ANY = -1
"""Ray chooses the bundle."""


@dataclass(frozen=True, slots=True)
class Into:
    """It runs in this bundle."""

    group: GroupId
    bundle: int
    vnode: VNodeId


@dataclass(frozen=True, slots=True)
class Apart:
    """It gets its own placement group on this vnode after the growth."""

    vnode: VNodeId
    growth: Growth


@dataclass(frozen=True, slots=True)
class Queue:
    """It waits in Ray's queue for a placement group."""

    group: GroupId
    bundle: int


@dataclass(frozen=True, slots=True)
class AwaitGroup:
    """It waits until there is room for its own placement group."""

    reason: str
    physical: bool
    """Whether another machine would help."""


def choose(
    ledger: Ledger,
    groups: PlacementGroups,
    load: Load,
    wait_s: Callable[[PlacementGroupRecord], float],
    cluster: ClusterId,
    demand: Resources,
    selector: Selector,
    *,
    lasting: bool = False,
    soon_s: float = 0.0,
    actors: Load | None = None,
    closed: Container[VNodeId] = frozenset(),
    machines_come: bool = False,
) -> Into | Apart | Queue | AwaitGroup | Never:
    """Choose where work runs: the tightest place first, ties by id.

    `lasting` work, such as actors, gets a flexible bundle of its own if possible, since a shared
    one could not be rebundled while the work lives. Other work waits in the queue of fixed-size
    nodes, or of a flexible bundle that has room within `soon_s`; `wait_s` predicts when a group has
    room. `closed` nodes get no more work. If `machines_come`, work that is too large for today's
    machines waits for new ones.
    """
    mine = [vnode for vnode in ledger.of(cluster) if allows(vnode, selector)]
    rooms = [
        (left.size, group.id, bundle, vnode.id)
        for vnode in mine
        if vnode.id not in closed
        for group, bundle, size in _bundles(groups, vnode)
        if demand.fits(left := size - load.get((group.id, bundle), Resources()))
    ]
    lasting = lasting and bool(demand)  # work that holds nothing goes where the least is left
    alone = [
        room
        for room in rooms
        if not lasting or not room[0] or ledger.vnodes[room[3]].kind is VNodeKind.FIXED
    ]
    if alone:
        _, group_id, bundle, vnode_id = min(alone)
        return Into(group_id, bundle, vnode_id)
    found = apart(ledger, cluster, demand, selector, closed)
    if isinstance(found, Apart):
        return found
    if rooms:
        _, group_id, bundle, vnode_id = min(rooms)
        return Into(group_id, bundle, vnode_id)
    soon_s = 0.0 if lasting else soon_s
    held_by = {} if lasting else actors or {}
    queue = shortest_queue(
        ledger, groups, wait_s, held_by, cluster, demand, selector, soon_s, closed
    )
    if queue is not None:
        return queue
    reason, physical = found.reason, found.physical
    impossible = never(ledger, cluster, demand, mine, selector, reason, machines_come)
    return impossible or AwaitGroup(reason, physical)


def shortest_queue(
    ledger: Ledger,
    groups: PlacementGroups,
    wait_s: Callable[[PlacementGroupRecord], float],
    actors: Load,
    cluster: ClusterId,
    demand: Resources,
    selector: Selector,
    soon_s: float,
    closed: Container[VNodeId] = frozenset(),
) -> Queue | None:
    """Choose the queue of Ray's in which work without room waits; None if there is none.

    A bundle with actors counts as a fixed-size node: it cannot be rebundled while they live, so
    only work in its queue can use the rest of it.
    """
    queues = [
        (waits, group.id, bundle)
        for vnode in ledger.of(cluster)
        if allows(vnode, selector) and vnode.id not in closed
        for group, bundle, size in _bundles(groups, vnode)
        if demand.fits(size - actors.get(at := (group.id, bundle), Resources()))
        or (vnode.kind is VNodeKind.FIXED and demand.fits(size))
        for waits in [wait_s(group)]
        if vnode.kind is VNodeKind.FIXED or at in actors or waits <= soon_s
    ]
    if not queues:
        return None
    _, group_id, bundle = min(queues)
    everywhere = not selector and len(groups[group_id].pieces) > 1
    return Queue(group_id, ANY if everywhere else bundle)


def apart(
    ledger: Ledger,
    cluster: ClusterId,
    demand: Resources,
    selector: Selector,
    closed: Container[VNodeId] = frozenset(),
) -> Apart | AwaitGroup:
    """Say where work could get its own placement group."""
    demand = demand or SOMETHING
    free = [
        (ledger.free(vnode.id).size, vnode)
        for vnode in ledger.of(cluster)
        if vnode.id not in closed
        if allows(vnode, selector) and demand.fits(ledger.free(vnode.id))
    ]
    if free:
        _, vnode = min(free, key=lambda each: (each[0], each[1].id))
        return Apart(vnode.id, Growth(vnode.machine, ()))
    may_run = allowed_machines(ledger, cluster, selector)

    def allowed(machine: Machine) -> bool:
        return flexible_id(cluster, machine.id) not in closed and may_run(machine)

    found = find_growth(ledger, cluster, demand, allowed=allowed)
    if isinstance(found, Unmet):
        return AwaitGroup(found.reason, found.physical and not names_machines(selector))
    return Apart(found.steps[-1].vnode, found)


def slots(group: PlacementGroupRecord, demand: Resources, lasting: Load) -> int:
    """How many tasks a group can run at once beside its lasting work."""
    return sum(
        demand.copies_in(piece.resources - lasting.get((group.id, bundle), Resources()))
        for bundle, piece in enumerate(group.pieces)
        if piece.vnode is not None
    )


def _bundles(
    groups: PlacementGroups, vnode: VNode
) -> Iterable[tuple[PlacementGroupRecord, int, Resources]]:
    for group in groups.of_vnode(vnode.id):
        for bundle, piece in enumerate(group.pieces):
            if piece.vnode == vnode.id:
                yield group, bundle, piece.resources
