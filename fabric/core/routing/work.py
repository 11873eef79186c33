"""Where work inside a virtual cluster runs: the tasks and actors that are submitted there.

Work goes into a bundle that has room for the whole of it; else into a new one, cut out of what its
vnode has free, for which the virtual cluster may have to grow. If there is no room it waits: in
the queue that Ray keeps for a placement group, where its fixed-size nodes can run it, or for a
placement group of its own, whose id it is given before that exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Container,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from operator import or_
from typing import TypeVar

from ..ledger import Ledger, WorkId
from ..places.borrowing import Growth, Unmet, find_growth, too_large_for
from ..places.groups import Group, GroupId, Groups, forget
from ..records import (
    NODE_LABEL,
    VCLUSTER_LABEL,
    VNODE_LABEL,
    ClusterId,
    Machine,
    ProcessId,
    VNode,
    VNodeId,
    VNodeKind,
)
from ..resources import UNIT, Resources
from ..selectors import In, Selector, describe, matches
from .lines import Lines
from .pace import SOON_S

SOMETHING = Resources.of({"CPU": 0.0001})
"""What work without demands is given where it needs a placement group: none can be empty."""

BATCHES = 8
"""Among how many batches per running task those that wait are divided."""

Key = TypeVar("Key")

ANY = -1
"""A bundle of Ray's choice."""
NOBODY = ProcessId("")


class WorkState(StrEnum):
    """Whether work has its resources."""

    PLACED = "placed"
    """Its bundle has room for it."""
    QUEUED = "queued"
    """Ray runs it when its placement group has room."""
    HELD = "held"
    """It waits for a placement group of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A task or an actor, from its submission to its end."""

    id: WorkId
    number: int
    """Who submitted first has the lower."""
    cluster: ClusterId
    demand: Resources
    selector: Selector = field(default_factory=dict, hash=False)
    """Which vnodes may run it, by their labels."""
    actor: str = ""
    """The id of the actor, once it is known; empty for a task."""
    lasting: bool = False
    """Whether it is an actor, which may live for ever."""
    function: str = ""
    """What a task calls, as far as that is known: nobody remembers it over a restart."""
    owner: ProcessId = NOBODY
    """The process that submitted it."""
    group: GroupId
    bundle: int = 0
    vnode: VNodeId | None = None
    """None until it is placed."""
    state: WorkState = WorkState.HELD


@dataclass(frozen=True, slots=True)
class Into:
    """It runs in this bundle."""

    group: GroupId
    bundle: int
    vnode: VNodeId


@dataclass(frozen=True, slots=True)
class Apart:
    """It gets a placement group of its own on this vnode, once that has grown."""

    vnode: VNodeId
    growth: Growth


@dataclass(frozen=True, slots=True)
class Queue:
    """It waits in Ray's queue for a placement group."""

    group: GroupId
    bundle: int


@dataclass(frozen=True, slots=True)
class Hold:
    """It waits until there is room for a placement group of its own."""

    reason: str
    physical: bool
    """Whether another machine would help."""


@dataclass(frozen=True, slots=True)
class Never:
    """The virtual cluster could not run it if nothing else ran there."""

    reason: str


def slots(group: Group, demand: Resources, lasting: Load) -> int:
    """How many tasks run in a group at once, beside what lasts there."""
    return sum(
        demand.copies_in(piece.resources - lasting.get((group.id, bundle), Resources()))
        for bundle, piece in enumerate(group.pieces)
        if piece.vnode is not None
    )


Load = Mapping[tuple[GroupId, int], Resources]
"""What work holds of each bundle."""


def choose(
    ledger: Ledger,
    groups: Groups,
    load: Load,
    wait_s: Callable[[Group], float],
    cluster: ClusterId,
    demand: Resources,
    selector: Selector,
    *,
    lasting: bool = False,
    soon_s: float = 0.0,
    actors: Load | None = None,
    machines_come: bool = False,
) -> Into | Apart | Queue | Hold | Never:
    """Say where work runs, the tightest place first; ties are broken by name.

    Work that is `lasting`, as actors are, gets a flexible piece for itself if it can: one that it
    shared would stay uncut for as long as it lives. Other work waits in the queue of a group of
    fixed-size nodes, or of a flexible piece that has room within `soon_s`; `wait_s` says when a
    group has room. Where `machines_come`, work that is too large
    for the machines of today waits for others.
    """
    mine = [vnode for vnode in ledger.of(cluster) if _allows(vnode, selector)]
    rooms = [
        (_units(left), group.id, bundle, vnode.id)
        for vnode in mine
        for group, bundle, size in _bundles(groups, vnode)
        if demand.fits(left := size - load.get((group.id, bundle), Resources()))
    ]
    lasting = lasting and bool(demand)  # what holds nothing goes where the least is left
    alone = [room for room in rooms if not lasting or not room[0] or _fixed(ledger, room[3])]
    if alone:
        _, group_id, bundle, vnode_id = min(alone)
        return Into(group_id, bundle, vnode_id)
    found = apart(ledger, cluster, demand, selector)
    if isinstance(found, Apart):
        return found
    if rooms:
        _, group_id, bundle, vnode_id = min(rooms)
        return Into(group_id, bundle, vnode_id)
    soon_s = 0.0 if lasting else soon_s
    held_by = {} if lasting else actors or {}
    queue = shortest_queue(ledger, groups, wait_s, held_by, cluster, demand, selector, soon_s)
    if queue is not None:
        return queue
    never = _never(ledger, cluster, demand, mine, selector, found.reason, machines_come)
    return never or Hold(found.reason, found.physical)


def shortest_queue(
    ledger: Ledger,
    groups: Groups,
    wait_s: Callable[[Group], float],
    actors: Load,
    cluster: ClusterId,
    demand: Resources,
    selector: Selector,
    soon_s: float,
) -> Queue | None:
    """Say in which of Ray's queues work waits that finds no room; None if in none.

    A piece of which actors hold a part is like a fixed-size node: it stays uncut while they live,
    and what else it has nobody gets who does not wait there.
    """
    queues = [
        (waits, group.id, bundle)
        for vnode in ledger.of(cluster)
        if _allows(vnode, selector)
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
    ledger: Ledger, cluster: ClusterId, demand: Resources, selector: Selector
) -> Apart | Hold:
    """Say where work could have a placement group of its own."""
    demand = demand or SOMETHING
    free = [
        (_units(ledger.free(vnode.id)), vnode)
        for vnode in ledger.of(cluster)
        if _allows(vnode, selector) and demand.fits(ledger.free(vnode.id))
    ]
    if free:
        _, vnode = min(free, key=lambda each: (each[0], each[1].id))
        return Apart(vnode.id, Growth(vnode.machine, ()))
    found = find_growth(ledger, cluster, demand, allowed=_allowed(ledger, cluster, selector))
    if isinstance(found, Unmet):
        return Hold(found.reason, found.physical and not _names_machines(selector))
    return Apart(found.steps[-1].vnode, found)


def _allowed(ledger: Ledger, cluster: ClusterId, selector: Selector) -> Callable[[Machine], bool]:
    def allowed(machine: Machine) -> bool:
        there = ledger.flexible(cluster, machine.id)
        if there is not None:
            return _allows(there, selector)
        return matches(selector, {**machine.labels, VCLUSTER_LABEL: cluster})

    return allowed


def _allows(vnode: VNode, selector: Selector) -> bool:
    if not selector:
        return True
    ours = {VNODE_LABEL: vnode.id, VCLUSTER_LABEL: vnode.cluster}
    return matches(selector, {**vnode.labels, **ours})


def _names_machines(selector: Selector) -> bool:
    """Whether only certain machines may run it, so that no other machine would help."""
    return isinstance(selector.get(NODE_LABEL), In)


def _never(
    ledger: Ledger,
    cluster: ClusterId,
    demand: Resources,
    mine: Sequence[VNode],
    selector: Selector,
    no_growth: str,
    machines_come: bool,
) -> Never | None:
    """Why it cannot run there even if nothing else does; `no_growth`: why no vnode grows for it.

    Work that names machines on which the cluster holds nothing is refused as well, unless the
    cluster can grow there now: those machines may never be free.
    """
    known = ledger.clusters[cluster]
    if any(demand.fits(vnode.resources) for vnode in mine):
        return None
    if _names_machines(selector) and not mine:
        where = _machines_named(ledger, selector)
        return Never(f"{cluster} holds nothing on {where}, and cannot grow there: {no_growth}")
    if selector and not mine and not known.flexible:
        return Never(f"no node of {cluster} has the labels {describe(selector)}")
    over = [name for name, most in known.limits.items() if demand[name] > most]
    if not known.flexible or over:
        what = _most(ledger, cluster, mine, demand)
        return Never(f"{demand} is more than {cluster} may run at once: {what}")
    allowed = _allowed(ledger, cluster, selector)
    above = too_large_for(ledger, known.parent, demand, allowed=allowed)
    if above is not None:
        nodes = [vnode for vnode in ledger.of(above) if allowed(ledger.machines[vnode.machine])]
        lacks = f"{above}, which {cluster} is in, "
        if selector and not nodes and not ledger.clusters[above].flexible:
            return Never(f"{lacks}holds nothing with the labels {describe(selector)}")
        what = _most(ledger, above, nodes, demand)
        return Never(f"{demand} is more than {lacks}may hold: {what}")
    if machines_come and not _names_machines(selector):
        return None
    machines = [each for each in ledger.machines.values() if allowed(each)]
    if any(demand.fits(each.total) for each in machines):
        return None
    which = f" with the labels {describe(selector)}" if selector else ""
    if not machines and selector:
        return Never(f"no machine of {cluster} has the labels {describe(selector)}")
    return Never(f"no machine{which} has {demand}: the most on one is {_largest(machines, demand)}")


def _machines_named(ledger: Ledger, selector: Selector) -> str:
    known = [each.hostname for each in ledger.machines.values() if matches(selector, each.labels)]
    named = selector.get(NODE_LABEL)
    ids = named.values if isinstance(named, In) else ()
    shown = ", ".join(id[:8] for id in ids)
    return f"machine {shown} ({', '.join(known) or 'which is not in the Ray cluster'})"


def _largest(machines: Iterable[Machine], demand: Resources) -> str:
    """The most that one machine has of what is demanded, the amounts that it lacks included."""
    totals = [each.total for each in machines]
    most = reduce(or_, totals, Resources())
    return ", ".join(f"{most[name] / UNIT:.15g} {name}" for name, _ in demand.units)


def _most(ledger: Ledger, cluster: ClusterId, nodes: Iterable[VNode], demand: Resources) -> str:
    """What bounds what a cluster can have in one place."""
    known = ledger.clusters[cluster]
    if known.flexible:
        over = {name: most for name, most in known.limits.items() if demand[name] > most}
        return f"its limit is {Resources(tuple(sorted(over.items())))}"
    biggest = max((vnode.resources for vnode in nodes), key=_units, default=Resources())
    return f"its largest node, which has {biggest}"


def _fixed(ledger: Ledger, vnode: VNodeId) -> bool:
    return ledger.vnodes[vnode].kind is VNodeKind.FIXED


def _bundles(groups: Groups, vnode: VNode) -> Iterable[tuple[Group, int, Resources]]:
    for group in groups.of_vnode(vnode.id):
        for bundle, piece in enumerate(group.pieces):
            if piece.vnode == vnode.id:
                yield group, bundle, piece.resources


def _units(resources: Resources) -> int:
    return sum(amount for _, amount in resources.units)


class Works:
    """All work that is known, in the order of submission, by what it is on."""

    def __init__(self, works: Iterable[Work] = ()) -> None:
        self._by_id: dict[WorkId, Work] = {}
        self._by_group: dict[GroupId, dict[WorkId, None]] = {}
        self._by_cluster: dict[ClusterId, dict[WorkId, None]] = {}
        self._load: dict[tuple[GroupId, int], Resources] = {}
        self._lasting: dict[tuple[GroupId, int], Resources] = {}
        self._queued: Counter[GroupId] = Counter()
        self._states: Counter[tuple[ClusterId, WorkState]] = Counter()
        self._held: dict[ClusterId, Lines[WorkId]] = {}
        self._demands: dict[GroupId, Counter[Resources]] = {}
        self._by_owner: dict[ProcessId, dict[WorkId, None]] = {}
        self._actors: dict[str, WorkId] = {}
        self._without: Counter[ClusterId] = Counter()
        self._queues: dict[GroupId, dict[tuple[int, Resources], dict[WorkId, None]]] = {}
        self._changed: set[WorkId] = set()
        for work in works:
            self.put(work)
        self._changed.clear()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Work]:
        return iter(self._by_id.values())

    def __contains__(self, id: object) -> bool:
        return id in self._by_id

    def __getitem__(self, id: WorkId) -> Work:
        return self._by_id[id]

    @property
    def load(self) -> Load:
        """What placed work holds of each bundle."""
        return self._load

    @property
    def lasting(self) -> Load:
        """What actors among it hold."""
        return self._lasting

    def running(self, group: Group, demand: Resources) -> int:
        """How many tasks that want so much run in a group now, if all want the same."""
        bundles = [(group.id, bundle) for bundle in range(len(group.pieces))]
        load = Resources.total(self._load.get(at, Resources()) for at in bundles)
        lasting = Resources.total(self._lasting.get(at, Resources()) for at in bundles)
        return demand.copies_in(load - lasting)

    def on(self, group: GroupId) -> tuple[Work, ...]:
        """The work that was given a placement group, oldest first."""
        return tuple(self._by_id[id] for id in self._by_group.get(group, ()))

    def of(self, cluster: ClusterId) -> tuple[Work, ...]:
        """The work of a virtual cluster, oldest first."""
        return tuple(self._by_id[id] for id in self._by_cluster.get(cluster, ()))

    @property
    def busy(self) -> Container[GroupId]:
        """The placement groups that work was given."""
        return self._by_group.keys()

    @property
    def owners(self) -> Collection[ProcessId]:
        """The processes that have submitted work."""
        return self._by_owner.keys()

    def of_owner(self, owner: ProcessId) -> tuple[Work, ...]:
        """The work that a process has submitted, oldest first."""
        return tuple(self._by_id[id] for id in self._by_owner.get(owner, ()))

    @property
    def actors(self) -> Mapping[str, WorkId]:
        """The actors among the work, by their ids."""
        return self._actors

    def needed(self, group: GroupId) -> Resources:
        """What a placement group has to have for the largest of the work that it was given."""
        return reduce(or_, self._demands.get(group, ()), Resources())

    @property
    def queued(self) -> Mapping[GroupId, int]:
        """How much work waits in Ray's queue for each placement group."""
        return self._queued

    def queues(self, group: GroupId) -> list[Work]:
        """Who is first of those that wait in Ray's queue for a placement group, of each kind.

        Of a kind is what asks for the same of the same bundle. Oldest first.
        """
        heads = (self._by_id[next(iter(ids))] for ids in self._queues.get(group, {}).values())
        return sorted(heads, key=lambda work: work.number)

    def count(self, cluster: ClusterId, state: WorkState) -> int:
        """How much work of a virtual cluster is in a state."""
        return self._states[cluster, state]

    def without_resources(self, cluster: ClusterId) -> int:
        """How many actors of a virtual cluster hold nothing; each is a process all the same."""
        return self._without[cluster]

    def held(self, cluster: ClusterId) -> Generator[Work, None, None]:
        """Who is next of those that wait for placement groups of their own, of each kind.

        Of a kind is what is alike. Oldest first; whoever is placed meanwhile makes way for the next
        of its kind.
        """
        if lines := self._held.get(cluster):
            with closing(lines.heads()) as heads:
                for id in heads:
                    yield self._by_id[id]

    def holding(self) -> tuple[ClusterId, ...]:
        """The virtual clusters in which work is held."""
        return tuple(self._held)

    def put(self, work: Work) -> None:
        """Add work, or write it down anew, where it stood."""
        before = self._by_id.get(work.id)
        if before is not None:
            self._uncount(before)
        self._by_id[work.id] = work
        self._changed.add(work.id)
        self._by_group.setdefault(work.group, {})[work.id] = None
        self._by_cluster.setdefault(work.cluster, {})[work.id] = None
        self._by_owner.setdefault(work.owner, {})[work.id] = None
        self._demands.setdefault(work.group, Counter())[work.demand] += 1
        if work.actor:
            self._actors[work.actor] = work.id
        if work.lasting and not work.demand:
            self._without[work.cluster] += 1
        self._states[work.cluster, work.state] += 1
        match work.state:
            case WorkState.PLACED if work.demand:
                _add(self._load, work)
                if work.lasting:
                    _add(self._lasting, work)
            case WorkState.QUEUED:
                self._queued[work.group] += 1
                queues = self._queues.setdefault(work.group, {})
                queues.setdefault((work.bundle, work.demand), {})[work.id] = None
            case WorkState.HELD:
                lines = self._held.setdefault(work.cluster, Lines())
                lines.add(work.id, work.number, alike(work.demand, work.selector))

    def drop(self, id: WorkId) -> Work | None:
        """Forget work, if it is known."""
        work = self._by_id.pop(id, None)
        if work is not None:
            self._changed.add(id)
            self._uncount(work)
            forget(self._by_cluster, work.cluster, id)
        return work

    def changes(self) -> set[WorkId]:
        """What has changed since this was asked the last time, for whoever writes it down."""
        changed, self._changed = self._changed, set()
        return changed

    def _uncount(self, work: Work) -> None:
        forget(self._by_group, work.group, work.id)
        forget(self._by_owner, work.owner, work.id)
        _less(self._demands[work.group], work.demand)
        if not self._demands[work.group]:
            del self._demands[work.group]
        self._actors.pop(work.actor, None)
        if work.lasting and not work.demand:
            _less(self._without, work.cluster)
        _less(self._states, (work.cluster, work.state))
        match work.state:
            case WorkState.PLACED if work.demand:
                _take_off(self._load, work)
                if work.lasting:
                    _take_off(self._lasting, work)
            case WorkState.QUEUED:
                _less(self._queued, work.group)
                queues = self._queues[work.group]
                forget(queues, (work.bundle, work.demand), work.id)
                if not queues:
                    del self._queues[work.group]
            case WorkState.HELD:
                self._held[work.cluster].remove(work.id)
                if not self._held[work.cluster]:
                    del self._held[work.cluster]


def alike(demand: Resources, selector: Selector) -> Hashable:
    """The same for all work that may run in the same places."""
    return (demand, tuple(sorted(selector.items(), key=str)) if selector else ())


def batch_limit(waiting: int, running: int, task_s: float | None = None) -> int:
    """How many short tasks may share the placement group that one of them waits for.

    A share of all that wait, so that the groups are few and their ends still close together
    (guided self-scheduling: Polychronopoulos and Kuck, 1987); or as many as end soon, if that is
    more.
    """
    soon = int(SOON_S / task_s) if task_s else 0
    return max(1, waiting // (BATCHES * max(1, running)), soon)


def _add(load: dict[tuple[GroupId, int], Resources], work: Work) -> None:
    at = (work.group, work.bundle)
    load[at] = load.get(at, Resources()) + work.demand


def _take_off(load: dict[tuple[GroupId, int], Resources], work: Work) -> None:
    at = (work.group, work.bundle)
    left = load[at] - work.demand
    if left:
        load[at] = left
    else:
        load.pop(at)


def _less(counts: Counter[Key], key: Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
