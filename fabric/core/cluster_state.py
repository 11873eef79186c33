"""Everything that the manager of a Ray cluster must remember."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NewType

from .ledger import ChangedIds, Ledger
from .pickle_names import reads_older, travels
from .places.groups import GroupId, PlacementGroupRecord, PlacementGroups
from .places.request import Request
from .records import (
    DEFAULT,
    ROOT,
    ClusterId,
    MachineId,
    PlacedCluster,
    ProcessId,
    VNode,
    VNodeId,
    VNodeKind,
    flexible_id,
)
from .resources import Resources
from .routing.work import Work
from .routing.work_table import WorkTable

ANSWERS = 10_000
"""How many answers are remembered: all that Ray may ask for again after the manager died."""

RELOCATES = "consolidate"
"""The rule of a notice on which a virtual cluster goes on elsewhere at once."""

JobId = NewType("JobId", str)
"""A job of Ray's, in hex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A virtual cluster, or a node of it, is to leave its place; until then all in it goes on."""

    at: float
    """When it leaves at the latest, in seconds since the epoch."""
    claimant: ClusterId | None
    """For whom; None for a gang that has run below its minimum for too long."""
    rule: str
    """The rule of the scheduler, such as `reclaim-quota`."""
    reason: str
    ready: bool = False
    """Whether all in it has ended, so that it may leave at once; a node leaves once it is idle."""
    node: VNodeId | None = None
    """The node that leaves: one above the minimum, or a flexible vnode with what it borrowed. None:
    all of the virtual cluster."""
    stops: bool = True
    """Whether it leaves even if work runs; otherwise the notice is withdrawn at that time."""


@travels
@reads_older
@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A virtual cluster from its request until it ends."""

    request: Request
    spec: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The requested spec, as a document."""
    owner: JobId | None = None
    """The job with which it ends; without a job it stays until it is deleted."""
    user: str = ""
    """The user that requested it; empty if unknown."""
    process: ProcessId | None = None
    """The process with which it also ends: the requesting one, if that is not the job's driver."""
    jobs: frozenset[JobId] = frozenset()
    """The jobs that work inside it, and should use nothing outside it."""
    asked_at: float = 0.0
    """Seconds since the epoch."""
    group: GroupId | None = None
    """The required id of its placement group, if a user requested a placement group."""
    waiting: bool = True
    """Whether it still waits for its places."""
    begun: bool = False
    """Whether all its places have existed once. From then on it keeps them."""
    since: float = 0.0
    """When it got its places or lost them last, in seconds since the epoch; 0 before that."""
    promised: tuple[VNode, ...] = ()
    """The places that it gets as soon as their holders have left; if it `relocates`, all its
    new places."""
    leaves: Notice | None = None
    nodes_leave: tuple[Notice, ...] = ()
    """The notices of its single nodes."""
    stopped: Notice | None = None
    """The last notice on which it left its places."""
    says_what_ended: bool = False
    """Whether its process says when all has ended on a node, where the manager sees no work."""

    @property
    def notices(self) -> tuple[Notice, ...]:
        """All notices that it has."""
        return self.nodes_leave if self.leaves is None else (self.leaves, *self.nodes_leave)

    @property
    def relocates(self) -> bool:
        """Whether it leaves its places for others, and goes on at once at promised ones."""
        return self.leaves is not None and self.leaves.rule == RELOCATES and bool(self.promised)

    @property
    def moves(self) -> bool:
        """Whether it is promised places, or it or a node of it is under notice."""
        return bool(self.promised or self.leaves is not None or self.nodes_leave)

    def in_line_again(self, now: float) -> Entry:
        """The entry once it has lost all its places, and waits for them again, or for new ones."""
        return replace(
            self,
            waiting=True,
            begun=False,
            leaves=None,
            nodes_leave=(),
            promised=self.promised if self.relocates else (),
            since=now,
        )

    def given(self, notice: Notice) -> Entry:
        """The entry with a notice more."""
        if notice.node is None:
            return replace(self, leaves=notice)
        return replace(self, nodes_leave=(*self.nodes_leave, notice))

    def given_anew(self, before: Notice, notice: Notice) -> Entry:
        """The entry with a notice that has changed."""
        return self.given(notice) if notice.node is None else self.without(before).given(notice)

    def without(self, notice: Notice) -> Entry:
        """The entry once a notice is withdrawn or carried out."""
        if notice.node is None:
            promised = () if self.relocates else self.promised
            return replace(self, leaves=None, promised=promised)
        left = tuple(each for each in self.nodes_leave if each.node != notice.node)
        return replace(self, nodes_leave=left)


class EntryIndex:
    """Which entries are of a kind that each turn asks for, so that it need not look at all."""

    def __init__(self) -> None:
        self.moving: set[ClusterId] = set()
        """Those that are promised places, or under notice."""
        self.waiting: set[ClusterId] = set()
        self.elastic: set[ClusterId] = set()
        """Those that may have nodes above their minimum."""
        self.due: set[ClusterId] = set()
        """Those with a deadline."""
        self.empty: set[ClusterId] = set()
        """Those that ask for no places."""
        self.in_line: dict[str, set[ClusterId]] = {}
        """Those that wait and are inside no other, by project."""
        self.inside: dict[ClusterId, set[ClusterId]] = {}
        """Those inside each other one, by that one's id; `ROOT` is not one."""
        self.of_job: dict[JobId, set[ClusterId]] = {}
        """Those that belong to a job, or in which it works."""
        self.of_process: dict[ProcessId, set[ClusterId]] = {}
        """Those that end with a process."""

    def put(self, entry: Entry) -> None:
        """Add an entry that is not in the index."""
        id, request = entry.request.id, entry.request
        kinds = (
            (self.moving, entry.moves),
            (self.waiting, entry.waiting),
            (self.elastic, request.elastic),
            (self.due, request.deadline is not None),
            (self.empty, not request.groups and not request.least),
        )
        for ids, belongs in kinds:
            if belongs:
                ids.add(id)
        for table, key in self._keys(entry):
            table.setdefault(key, set()).add(id)

    def drop(self, entry: Entry) -> None:
        """Remove an entry that is in the index."""
        id = entry.request.id
        for ids in (self.moving, self.waiting, self.elastic, self.due, self.empty):
            ids.discard(id)
        for table, key in self._keys(entry):
            table[key].discard(id)
            if not table[key]:
                del table[key]

    def _keys(self, entry: Entry) -> Iterator[tuple[dict[Any, set[ClusterId]], Any]]:
        if entry.request.parent != ROOT:
            yield self.inside, entry.request.parent
        elif entry.waiting:
            yield self.in_line, entry.request.project
        for job in {entry.owner, *entry.jobs} - {None}:
            yield self.of_job, job
        if entry.process is not None:
            yield self.of_process, entry.process


class ClusterState:
    """The ledger, the entries, the placement groups, and the work in them."""

    def __init__(
        self,
        ledger: Ledger | None = None,
        entries: Iterable[Entry] = (),
        groups: Iterable[PlacementGroupRecord] = (),
        works: Iterable[Work] = (),
        *,
        order: Mapping[ClusterId, int] | None = None,
    ) -> None:
        """`order` has each entry's position among all requests; by default they are numbered."""
        self.ledger = ledger or Ledger()
        self.groups = PlacementGroups(groups)
        self.works = WorkTable(works)
        self.entries: dict[ClusterId, Entry] = {entry.request.id: entry for entry in entries}
        """In the order of their requests."""
        self.order = dict(order or {id: number for number, id in enumerate(self.entries)})
        """The position of each request in the order of all."""
        self.latest = max(self.order.values(), default=-1)
        """The position of the last request."""
        self.index = EntryIndex()
        for entry in self.entries.values():
            self.index.put(entry)
        self.changed_entries = ChangedIds[ClusterId]()
        self.answers: dict[str, tuple[str, ...]] = {}
        """The answers to requests that may be repeated, by idempotency key."""
        self.changed_answers = ChangedIds[str]()

    @property
    def waiting_inside(self) -> list[Request]:
        """The waiting requests for places inside others, in the order in which they were made."""
        inside = set[ClusterId]().union(*self.index.inside.values())
        return [entry.request for entry in self.in_order(inside & self.index.waiting)]

    @property
    def lendable(self) -> Ledger:
        """The ledger in which all that is promised to claimants, and free by now, is taken: others
        do not borrow it."""
        promised: dict[MachineId, list[Resources]] = {}
        for vnode in (v for id in self.index.moving for v in self.entries[id].promised):
            promised.setdefault(vnode.machine, []).append(vnode.resources)
        if not promised:
            return self.ledger
        ledger = self.ledger.copy()
        if DEFAULT not in ledger.clusters:
            ledger.begin(PlacedCluster(id=DEFAULT, parent=ROOT), ())
        for machine in promised.keys() & ledger.machines.keys():
            kept, id = Resources.total(promised[machine]), flexible_id(DEFAULT, machine)
            if not (kept := kept & ledger.free(machine)):
                continue
            if id in ledger.vnodes:
                ledger.grow(id, kept)
                continue
            vnode = VNode(
                id=id,
                cluster=DEFAULT,
                parent=machine,
                machine=machine,
                kind=VNodeKind.FLEXIBLE,
                resources=kept,
            )
            ledger.add(vnode)
        return ledger

    def in_order(self, ids: Iterable[ClusterId]) -> list[Entry]:
        """These entries, in the order of their requests."""
        return [self.entries[id] for id in sorted(ids, key=self.order.__getitem__)]

    def all_inside(self, clusters: Iterable[ClusterId]) -> list[Entry]:
        """The entries of all inside these, parents before children."""
        found, todo = set[ClusterId](), [*clusters]
        for parent in todo:  # grows on the way
            more = self.index.inside.get(parent, set()) - found
            found |= more
            todo += more
        return self.in_order(found)

    def closing(self, cluster: ClusterId) -> frozenset[VNodeId]:
        """The single nodes of a virtual cluster that leave, and get no more work."""
        entry = self.entries.get(cluster)
        notices = () if entry is None else entry.nodes_leave
        return frozenset(each.node for each in notices if each.node is not None)

    def within(self, cluster: ClusterId) -> list[Entry]:
        """The virtual cluster's entry and those of all inside it, including waiting ones."""
        return [self.entries[cluster], *self.all_inside([cluster])]

    def add(self, entry: Entry) -> None:
        """Add an entry, or replace the one with the same id."""
        id = entry.request.id
        if (before := self.entries.get(id)) is not None:
            self.index.drop(before)
        else:
            self.latest += 1
            self.order[id] = self.latest
        self.entries[id] = entry
        self.index.put(entry)
        self.changed_entries.add(id)

    def admit(self, cluster: ClusterId, now: float) -> None:
        """Record that a virtual cluster has its places."""
        self.add(replace(self.entries[cluster], waiting=False, since=now))

    def remove(self, cluster: ClusterId) -> Entry | None:
        """Remove an entry and return it; None if there is none."""
        self.changed_entries.add(cluster)
        entry = self.entries.pop(cluster, None)
        if entry is not None:
            del self.order[cluster]
            self.index.drop(entry)
        return entry

    def answer(self, key: str, ended: tuple[str, ...]) -> None:
        """Remember an answer; forget the oldest beyond `ANSWERS`."""
        self.answers[key] = ended
        self.changed_answers.add(key)
        while len(self.answers) > ANSWERS:
            oldest = next(iter(self.answers))
            del self.answers[oldest]
            self.changed_answers.add(oldest)
