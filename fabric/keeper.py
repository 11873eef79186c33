"""Keeper: keeps the virtual clusters of one Ray cluster, and makes Ray agree with its books.

Whatever is decided is written into the books first, then into their file, and only then done. A
turn of the loop looks at all of Ray and sets right what differs, so that a crash between any two
steps costs nothing: a placement group that is in the books is made, one of ours that is not in them
is removed, one that is not ours is never touched.

It runs in one event loop and never waits between reading the books and writing them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .control import Observed, Ray, Seen
from .core.admission import (
    Admit,
    Expire,
    NoRoom,
    QueuePolicy,
    Request,
    Wait,
    apply,
    decide,
    never,
    refill,
)
from .core.audit import Escape, escapes, jobs_in
from .core.books import Books, Entry, JobId
from .core.groups import Group, GroupId, Piece, Recut, Stuck, groups_for, recut
from .core.ledger import Cluster, Ledger, LedgerError, Loan, flexible_id
from .core.records import (
    ROOT,
    ClusterId,
    MachineId,
    ProcessId,
    SchedulingPolicy,
    VNode,
    VNodeId,
    VNodeKind,
)
from .core.resources import Resources
from .errors import NameTaken, NeverFits, NoSuchCluster, NotInTime
from .ledger_file import LedgerFile
from .making import Maker, Order
from .router import Router

DEFAULT = ClusterId("default")
"""The virtual cluster of all jobs that name none: whatever runs on Ray without us."""

PREFIX = "fedpilot"
MOST_REST_S = 30.0
"""The longest pause before somebody is let in again whom Ray had no room for."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperSettings:
    """How a keeper goes about it."""

    policy: QueuePolicy = QueuePolicy.FIFO
    """Who is first in a queue."""
    lease_s: float = 60.0
    """Seconds after which what was borrowed goes back, once nothing uses it."""
    grace_s: float = 3.0
    """Seconds that Ray may take to give what the books say is free, before somebody else is taken
    to have been faster and the virtual cluster waits again."""
    settle_s: float = 1.5
    """Seconds until Ray's own view of a machine shows what has just been done there."""
    knock_s: float = 1.0
    """Seconds between two looks for machines whose Ray is gone, which Ray notices late."""
    audit_s: float = 2.0
    """Seconds between two looks at what runs beyond its virtual cluster."""
    turn_s: float = 0.25
    """Seconds between two looks at Ray."""
    machines_come: bool = False
    """Whether somebody adds machines for what waits, as Ray's autoscaler does. Then what is too
    large for the machines of today waits for others; otherwise it is refused."""


class Keeper:
    """The virtual clusters of one Ray cluster."""

    def __init__(
        self,
        ray: Ray,
        file: LedgerFile,
        *,
        clock: Callable[[], float],
        new_id: Callable[[ClusterId], GroupId],
        settings: KeeperSettings | None = None,
    ) -> None:
        self._ray = ray
        self._file = file
        self._clock = clock
        self._new_id = new_id
        self.settings = settings or KeeperSettings()
        self.books = Books()
        self.router = Router(self, clock)
        self._maker = Maker(
            ray,
            clock,
            lambda: self.books,
            name=f"{PREFIX}:{file.name}",
            patience_s=self.settings.grace_s,
            on_there=self._there,
        )
        self._in_use: frozenset[GroupId] = frozenset()
        self._starting: dict[ClusterId, float] = {}
        """Since when those that were let in wait for Ray."""
        self._ready: set[GroupId] = set()
        self._told: dict[ClusterId, Wait] = {}
        self.escapes: tuple[Escape, ...] = ()
        self._audited = self._knocked = 0.0
        self._pinned: dict[ClusterId, float] = {}
        """Those for whom Ray found other places than the ledger, and when they may try again."""
        self._attempts: Counter[ClusterId] = Counter()
        """How often Ray has not had the room that the books said was free."""
        self._troubles: dict[ClusterId, str] = {}
        self._endings: dict[ClusterId, str] = {}
        self._events: dict[ClusterId, asyncio.Event] = {}
        self._history: deque[Mapping[str, Any]] = deque(maxlen=1000)
        self._numbers = itertools.count(1)

    # -- what is asked of it ------------------------------------------------------------------

    async def start(self) -> None:
        """Read the books, look at Ray, and set right what has happened meanwhile."""
        self.books = self._file.load()
        self.router = Router(self, self._clock)
        for id, entry in self.books.entries.items():
            if entry.waiting:
                continue
            if not entry.begun:
                self._starting[id] = self._clock()
            if any(self._missing(entry.request)):
                self._trouble(id, "some of its nodes died")
        if DEFAULT not in self.books.ledger.clusters:
            self.books.ledger.begin(Cluster(id=DEFAULT, parent=ROOT), ())
        await self.turn(everything=True)

    async def create(self, entry: Entry, *, wait_s: float = 0.0) -> str:
        """Let a virtual cluster in, or have it wait; says in which state it is after `wait_s`.

        Asking again for the same is answered like the first time. NameTaken, NoSuchCluster for its
        parent, NeverFits; NotInTime once its deadline is over.
        """
        id = entry.request.id
        known = self.books.entries.get(id)
        if known is None:
            if (over := self.books.answers.get(_asking(entry))) is not None:
                raise NotInTime(id, self._clock() - entry.asked_at, over[0])
            self._check_names(entry.request)
            self._endings.pop(id, None)
            self.books.enter(entry)
            self._note(id, "asked", "")
            self._admit()
            if id in self.books.entries and self.books.entries[id].waiting:
                impossible = self._never(entry.request)
                if impossible is not None:
                    self._strike(id, impossible.reason)
                    self.commit()
                    raise NeverFits(id, impossible.reason, impossible.most)
            self.commit()
        elif (known.spec, known.owner, known.request.parent) != (
            entry.spec,
            entry.owner,
            entry.request.parent,
        ):
            raise NameTaken(id)
        end = self._clock() + wait_s
        while id in self.books.entries and self.state(id) in ("waiting", "starting"):
            left = end - self._clock()
            if left <= 0:
                break
            event = self._events.setdefault(id, asyncio.Event())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), left)
        if id not in self.books.entries:
            waited = self._clock() - entry.asked_at
            raise NotInTime(id, waited, self._endings.get(id, "it was deleted"))
        return self.state(id)

    async def delete(self, id: ClusterId, key: str = "") -> tuple[str, ...]:
        """End a virtual cluster and all inside it; says which, children before their parents.

        Asking again with the same key is answered like the first time. NoSuchCluster.
        """
        if key in self.books.answers:
            return self.books.answers[key]
        if id not in self.books.entries:
            raise NoSuchCluster(id, sorted(self.books.entries))
        ended = self._end(id, "it was deleted")
        if key:
            self.books.answer(key, ended)
        self._admit()
        order = self.commit()
        await order.removed.wait()
        return ended

    def attach(self, id: ClusterId, job: JobId) -> None:
        """A job works inside a virtual cluster, and should take nothing beyond it."""
        entry = self.books.entries.get(id)
        if entry is None:
            raise NoSuchCluster(id, sorted(self.books.entries))
        self.books.enter(replace(entry, jobs=entry.jobs | {job}))
        self.commit()

    def state(self, id: ClusterId) -> str:
        """`waiting`, `starting`, `active` or `recovering`."""
        if self.books.entries[id].waiting:
            return "waiting"
        if id in self._starting:
            return "starting"
        return "recovering" if id in self._troubles else "active"

    def reason(self, id: ClusterId) -> str:
        """Why it is not active; empty if it is."""
        if self.books.entries[id].waiting:
            told = self._told.get(id)
            return self._troubles.get(id) or (told.reason if told else "it has just asked")
        if id in self._starting:
            return "Ray is making its placement groups"
        return self._troubles.get(id, "")

    def position(self, id: ClusterId) -> int | None:
        """Its place in the queue of its parent, counted from 1; None if it does not wait."""
        told = self._told.get(id)
        return told.position if told and self.books.entries[id].waiting else None

    def physical_demand(self) -> tuple[Resources, ...]:
        """What machines are needed for, if more are needed than there are: all that is held, and
        all that waits. Ray's autoscaler is told the whole size that a cluster should have."""
        ledger = self.books.ledger
        waiting = [each for each in self.books.waiting if each.parent == ROOT]
        unmet = [bundle.resources for r in waiting for g in r.groups for bundle in g.bundles]
        unmet += [request.least for request in waiting if request.least]
        unmet += self.router.demand()
        if not unmet:
            return ()
        held = [each.resources for each in ledger.vnodes.values() if each.parent in ledger.machines]
        return (*held, *unmet)

    def history(self) -> tuple[Mapping[str, Any], ...]:
        """What has happened last, oldest first."""
        return tuple(self._history)

    async def settled(self) -> None:
        """Wait until everything that was ordered is done."""
        await self._maker.settled()

    @property
    def lost(self) -> bool:
        """Whether the books could not be written, so that what is here may never have been."""
        return self._file.closed

    # -- one turn of the loop -----------------------------------------------------------------

    async def turn(self, *, everything: bool = False) -> None:
        """Look at Ray, and set right what differs from the books.

        `everything` also looks for placement groups that wait for places and are in no book. Only a
        keeper that ended before its time leaves such.
        """
        if self._clock() >= self._knocked + self.settings.knock_s:
            self._knocked = self._clock()
            for id in await self._ray.bury():
                log.warning("machine %s is gone, and Ray was told so", id)
        skip, before = self._maker.in_flight, dict(self.books.entries)
        known = {group.id: len(group.pieces) for group in self.books.groups}
        seen = await self._ray.observe(
            {**dict.fromkeys(self._maker.owed, 0), **known}, everything=everything
        )
        dead = await self._ray.dead(self.router.actors())
        over = await self._over()
        skip.update(self._maker.in_flight, {each.id for each in self.books.groups} - known.keys())
        self._in_use = seen.in_use
        self._see_machines(seen)
        self._see_groups(seen, skip)
        self._see_jobs(seen, before)
        self._see_processes(over)
        self._see_others(seen)
        self._refill()
        self.router.look(seen.in_use, dead, over)
        self.router.rebuild(seen.wanted, seen.in_use)
        self._give_back()
        self._admit()
        self.commit()
        await self._audit()

    async def _audit(self) -> None:
        """Look for what runs beyond the virtual cluster of its job."""
        jobs = jobs_in(self.books)
        if self._clock() < self._audited + self.settings.audit_s:
            return
        self._audited = self._clock()
        running = await self._ray.running(jobs.keys()) if jobs else ()
        before = {escape.what.id for escape in self.escapes}
        self.escapes = escapes(self.books, jobs, running, self._maker.past)
        for escape in self.escapes:
            if escape.what.id not in before:
                self._note(escape.cluster, "escape", escape.reason)

    def _see_machines(self, seen: Observed) -> None:
        ledger = self.books.ledger
        for machine in seen.machines:
            if ledger.machines.get(machine.id) != machine:
                with contextlib.suppress(LedgerError):  # it shrank below what it carries
                    ledger.machine_up(machine)
        for gone in sorted(ledger.machines.keys() - {machine.id for machine in seen.machines}):
            self._lose(gone)

    def _lose(self, machine: MachineId) -> None:
        """A machine is gone: forget its vnodes, and what only they needed."""
        hostname = self.books.ledger.machines[machine].hostname
        lost = {vnode.id: vnode for vnode in self.books.ledger.machine_down(machine)}
        self.router.lost(lost.keys())
        for vnode in sorted(lost):
            for group in self.books.groups.of_vnode(vnode):
                if group.movable:
                    continue  # Ray looks for other places
                pieces = tuple(
                    replace(piece, vnode=None) if piece.vnode in lost else piece
                    for piece in group.pieces
                )
                self.books.groups.drop(group.id)
                if any(piece.vnode for piece in pieces):
                    self.books.groups.put(replace(group, pieces=pieces))
                else:
                    self._ready.discard(group.id)
                    self._maker.order(remove=[group])
        for id in sorted({vnode.cluster for vnode in lost.values()} - {DEFAULT}):
            why = f"machine {hostname} ({machine[:8]}) died with some of its nodes"
            if self.books.entries[id].group in self.books.groups:
                why += "; as a placement group it is made anew once nothing runs in the rest"
            self._trouble(id, why)

    def _see_groups(self, seen: Observed, skip: set[GroupId]) -> None:
        """Bring the placement groups in line with the books, and the books with where they are."""
        for group in list(self.books.groups):
            if group.id in skip or group.id not in self.books.groups:
                continue
            found = seen.groups.get(group.id)
            if found is not None and group.id in self._ready and self._maker.knows(found):
                continue
            if found is None:
                self._ready.discard(group.id)
                if group.cluster not in self._starting:
                    self._trouble(group.cluster, "somebody removed one of its placement groups")
                if all(piece.vnode for piece in group.pieces):
                    self._maker.order(make=[group])
                else:  # a part of it has nowhere to be
                    self.books.groups.drop(group.id)
                    cut = self.cut(
                        self.books.ledger, group.vnodes & self.books.ledger.vnodes.keys()
                    )
                    if isinstance(cut, Recut):
                        self.order(cut)
            elif _has_places(group, found):
                self._settle(group, found)
            elif found.state == "pending" and group.cluster in self._starting:
                since = self._starting[group.cluster]
                if self._clock() > since + self.settings.grace_s:
                    self._take_back(group.cluster, found.why)
            elif found.state == "rescheduling" and group.cluster in self._starting:
                del self._starting[group.cluster]
                self._trouble(group.cluster, "a machine died with some of its nodes")
                self._wake(group.cluster)
            elif found.state == "pending":
                self._trouble(group.cluster, "Ray has no room for one of its placement groups")
        for id in list(self._starting):
            self._check_started(id)
        for found in seen.groups.values():
            known = found.id in self.books.groups or found.id in skip
            if self._maker.is_ours(found.name) and not known:
                self._maker.order(remove=[_stray(found)])
        self._maker.owed.intersection_update(seen.groups)

    def _see_jobs(self, seen: Observed, before: Mapping[ClusterId, Entry]) -> None:
        """End what belongs to jobs that are over; what was not there `before` may be too new."""
        for id, entry in before.items():
            now = self.books.entries.get(id)
            if now is None:
                continue
            if entry.owner is not None and entry.owner not in seen.jobs:
                self._end(id, "its job ended")
            elif over := entry.jobs - seen.jobs:
                self.books.enter(replace(now, jobs=now.jobs - over))

    async def _over(self) -> frozenset[ProcessId]:
        """The processes that have ended, of those that matter and may have."""
        asking = {each.process for each in self.books.entries.values() if each.process is not None}
        silent = self.router.silent()
        over = await self._ray.over({*asking, *silent}) if asking or silent else frozenset()
        for process in silent - over:
            self.router.heard(process)
        return over

    def _see_processes(self, over: Collection[ProcessId]) -> None:
        for id, entry in list(self.books.entries.items()):
            if entry.process in over and id in self.books.entries:
                self._end(id, "the process that asked for it ended")

    def _see_others(self, seen: Observed) -> None:
        """Write down what runs on Ray without us, as the default virtual cluster."""
        ledger = self.books.ledger
        ours: dict[MachineId, list[Resources]] = {}
        for found in seen.groups.values():
            if found.id in self.books.groups or self._maker.is_ours(found.name):
                for host, carried in zip(found.hosts, found.carries, strict=True):
                    if host is not None:
                        ours.setdefault(host, []).append(carried)
        for machine in seen.machines:
            fresh = self._maker.fresh(machine.id, self.settings.settle_s)
            available = seen.available.get(machine.id)
            if fresh or available is None or machine.id not in ledger.machines:
                continue
            mine = Resources.total(ours.get(machine.id, ()))
            taken = machine.total.beyond(available).beyond(mine)
            id = flexible_id(DEFAULT, machine.id)
            before = ledger.vnodes.get(id)
            if before is not None and before.resources == taken:
                continue
            if before is not None:
                ledger.drop(id)
            size = taken & ledger.free(machine.id)
            if size:
                ledger.add(
                    VNode(
                        id=id,
                        cluster=DEFAULT,
                        parent=machine.id,
                        machine=machine.id,
                        kind=VNodeKind.FLEXIBLE,
                        resources=size,
                        labels=machine.labels,
                    )
                )

    def _refill(self) -> None:
        """Find new places for what was lost with a machine, where Ray does not do it itself."""
        for id in sorted(self._troubles):
            entry = self.books.entries.get(id)
            if entry is None or entry.waiting or id in self._starting:
                continue
            missing, least = self._missing(entry.request)
            if not missing and not least:
                if self._all_there(id):
                    del self._troubles[id]
                    self._note(id, "recovered", "")
                continue
            pinned = [index for index in missing if not self._moves(_vnode_id(id, index))]
            if pinned and entry.group is not None:
                self._begin_anew(entry)
            elif pinned or least:
                found = refill(self.books.ledger, entry.request, pinned, least)
                if isinstance(found, Admit):
                    self._let_in(found)

    def _begin_anew(self, entry: Entry) -> None:
        """Have all of a placement group made again that somebody asked for, under the id he knows.

        Ray cannot mend a part of it, so that waits until nothing runs in the rest.
        """
        id, books = entry.request.id, self.books
        left = books.groups.get(entry.group) if entry.group else None
        rest = books.ledger.of(id)
        if left is not None and (
            left.id in self._in_use or any(books.ledger.carved(vnode.id) for vnode in rest)
        ):
            return
        twin = books.ledger.copy()
        for vnode in rest:
            twin.drop(vnode.id)
        missing, least = self._missing(entry.request, twin)
        found = refill(twin, entry.request, missing, least)
        if not isinstance(found, Admit):
            return
        for vnode in rest:
            books.ledger.drop(vnode.id)
        self._without([left] if left else [], {VNodeId(vnode.parent) for vnode in rest})
        self._let_in(found)

    def _missing(
        self, request: Request, ledger: Ledger | None = None
    ) -> tuple[list[int], Resources]:
        """The fixed-size nodes and the flexible resources that a virtual cluster lacks."""
        ledger = ledger or self.books.ledger
        count = sum(len(group.bundles) for group in request.groups)
        missing = [n for n in range(count) if _vnode_id(request.id, n) not in ledger.vnodes]
        return missing, request.least.beyond(ledger.flexible_total(request.id))

    def _moves(self, vnode: VNodeId) -> bool:
        return any(group.movable for group in self.books.groups.of_vnode(vnode))

    def _give_back(self) -> None:
        """Give back what is due and unused, lower clusters before upper ones."""
        now = self._clock()
        again = True
        while again:
            again = False
            for loan in [each for each in self.books.ledger.loans() if each.until <= now]:
                again |= self._return(loan)

    def _return(self, loan: Loan) -> bool:
        ledger = self.books.ledger
        if not ledger.unused(loan):
            return False
        above = ledger.vnodes[loan.vnode].parent
        twin = ledger.copy()
        twin.give_back(loan)
        touched = {loan.vnode, VNodeId(above)} & {*ledger.vnodes}
        cut = self.cut(twin, touched)
        if isinstance(cut, Stuck):
            return False
        cluster = ledger.vnodes[loan.vnode].cluster
        ledger.give_back(loan)
        self.order(cut)
        self._note(cluster, "gave back", str(loan.resources))
        return True

    # -- letting in, taking back, ending ------------------------------------------------------

    def check(self, request: Request) -> None:
        """Refuse what could never be let in. NameTaken, NoSuchCluster, NeverFits."""
        self._check_names(request)
        impossible = self._never(request)
        if impossible is not None:
            raise NeverFits(request.id, impossible.reason, impossible.most)

    def _never(self, request: Request) -> NoRoom | None:
        if request.parent == ROOT and self.settings.machines_come:
            return None
        return never(self.books.ledger, request)

    def _check_names(self, request: Request) -> None:
        if request.id in (ROOT, DEFAULT):
            raise NameTaken(request.id)
        there = self.books.ledger.clusters.keys() - {DEFAULT}
        if request.parent != ROOT and request.parent not in there:
            raise NoSuchCluster(request.parent, sorted(there))

    def _admit(self) -> None:
        """Let in whoever has places now."""
        now = self._clock()
        resting = {
            self.books.entries[id].request.parent
            for id, until in self._pinned.items()
            if until > now and id in self.books.entries and self.books.entries[id].waiting
        }
        resting.update(id for id in self._troubles if not self._all_there(id))
        waiting = [each for each in self.books.waiting if each.parent not in resting]
        for decision in decide(self.books.ledger, waiting, now, self.settings.policy):
            match decision:
                case Admit(request):
                    stuck = self._let_in(decision)
                    if stuck is not None:
                        self._told[request.id] = Wait(request, 1, stuck.reason)
                        break
                case Expire(request, reason):
                    self._end(request.id, reason)
                case Wait(request):
                    self._told[request.id] = decision

    def _let_in(self, found: Admit) -> Stuck | None:
        """Write down that somebody gets places, if the pieces can be cut so."""
        id, books = found.request.id, self.books
        until = self.due()
        right_in_ray = found.request.parent == ROOT  # then no pieces have to be cut for it
        pinned = id in self._pinned or id in books.ledger.clusters
        twin = books.ledger if right_in_ray else books.ledger.copy()
        apply(twin, found, until)
        fixed = groups_for(found, self._new_id, pinned=pinned, whole=books.entries[id].group)
        given: dict[VNodeId, Resources] = {}
        for group in fixed:
            for piece in group.pieces:
                if piece.vnode is not None:
                    given[piece.vnode] = piece.resources
        steps = [step for growth in found.growths for step in growth.steps]
        touched = {
            *(vnode.id for vnode in found.vnodes),
            *(VNodeId(vnode.parent) for vnode in found.vnodes),
            *(step.vnode for step in steps),
            *(VNodeId(step.parent) for step in steps),
        } & (twin.vnodes.keys() - given.keys())  # these get just what they should have
        cut = self.cut(twin, touched, given)
        if isinstance(cut, Stuck):
            return cut
        if not right_in_ray:
            apply(books.ledger, found, until)
        self.order(Recut(cut.remove, (*fixed, *cut.make)))
        for step in steps:
            self._note(step.cluster, "borrowed", str(step.by))
        if books.entries[id].waiting:
            books.admit(id)
            self._told.pop(id, None)
            self._troubles.pop(id, None)
            self._starting[id] = self._clock()
            self._note(id, "admitted", "")
            self._check_started(id)
        return None

    def _check_started(self, id: ClusterId) -> None:
        """It is active once all that it holds is there."""
        if id in self._starting and self._all_there(id):
            del self._starting[id]
            self.books.enter(replace(self.books.entries[id], begun=True))
            self._attempts.pop(id, None)
            self._note(id, "active", "")
            self._wake(id)

    def _all_there(self, id: ClusterId) -> bool:
        """Whether Ray has a place for each placement group of a virtual cluster."""
        return all(each.id in self._ready for each in self.books.groups.of_cluster(id))

    def _take_back(self, id: ClusterId, why: str) -> None:
        """Ray has not got what the books said was free: it waits again, where it stood."""
        if id not in self._starting:
            return
        entry = self.books.entries[id]
        below = self.books.ledger.subtree(id)
        self._remove(below)
        for each in below[:-1]:
            self._strike(each, f"{id}, which it is in, lost its places")
        self._strike_inside({*below}, "lost its places")
        self.books.enter(replace(entry, waiting=True))
        self._starting.pop(id, None)
        self._attempts[id] += 1
        rest_s = self.settings.settle_s * 2 ** (self._attempts[id] - 1)
        self._pinned[id] = self._clock() + min(rest_s, MOST_REST_S)
        self._troubles[id] = f"others took what was free ({why.lower().replace('_', ' ')})"
        self._note(id, "waits again", self._troubles[id])

    def _end(self, id: ClusterId, why: str) -> tuple[ClusterId, ...]:
        """Somebody ends, with all inside it."""
        ended: tuple[ClusterId, ...] = (id,)
        if id in self.books.ledger.clusters:
            ended = self.books.ledger.subtree(id)
            self._remove(ended)
        over = {*ended}
        for each in ended:
            self._strike(each, why if each == id else f"{id}, which it is in, ended")
        self._strike_inside(over, "ended")
        return ended

    def _strike_inside(self, over: set[ClusterId], why: str) -> None:
        """Nobody waits inside those that hold nothing any more; parents asked before children."""
        for entry in list(self.books.entries.values()):
            parent, id = entry.request.parent, entry.request.id
            if parent in over and id in self.books.entries:
                over.add(id)
                self._strike(id, f"{parent}, which it is in, {why}")

    def _remove(self, ended: tuple[ClusterId, ...]) -> None:
        """Take what these hold, a cluster and all below it."""
        ledger, groups = self.books.ledger, self.books.groups
        mine = [vnode for each in ended for vnode in ledger.of(each)]
        carriers = [group for each in ended for group in groups.of_cluster(each)]
        for each in ended:
            self.router.end(each)
        ledger.end(ended[-1])
        self._without(carriers, {VNodeId(vnode.parent) for vnode in mine})

    def _without(self, carriers: Sequence[Group], above: set[VNodeId]) -> None:
        """Have placement groups removed, and give their room to the vnodes they were cut from."""
        for group in carriers:
            self.books.groups.drop(group.id)
            self._ready.discard(group.id)
        self._maker.order(remove=carriers)
        cut = self.cut(self.books.ledger, above & self.books.ledger.vnodes.keys())
        if isinstance(cut, Recut):  # more room for the parents, so nothing can be in the way
            self.order(cut)

    def _strike(self, id: ClusterId, why: str) -> None:
        entry = self.books.strike(id)
        if entry is not None:
            self.books.answer(_asking(entry), (why,))
        for known in (self._told, self._starting, self._pinned, self._attempts, self._troubles):
            known.pop(id, None)
        self._endings[id] = why
        while len(self._endings) > 10_000:
            del self._endings[next(iter(self._endings))]
        self._note(id, "ended", why)
        self._wake(id)

    # -- placement groups ---------------------------------------------------------------------

    def cut(
        self,
        ledger: Ledger,
        vnodes: Iterable[VNodeId],
        given: Mapping[VNodeId, Resources] | None = None,
    ) -> Recut | Stuck:
        """Say how these vnodes of a ledger get the pieces that they should have."""
        others = {vnode.id for vnode in ledger.of(DEFAULT)}
        ours = [id for id in vnodes if id not in others]
        busy = self.books.works.busy() | self._in_use
        return recut(ledger, self.books.groups, ours, self._new_id, busy=busy, given=given)

    def due(self) -> float:
        """When what is borrowed now has to go back."""
        return self._clock() + self.settings.lease_s

    def order(self, cut: Recut) -> None:
        """Write a cut down, and order that it is made."""
        gone = [self.books.groups[id] for id in cut.remove]
        self.books.groups.apply(cut)
        self._ready.difference_update(cut.remove)
        self._maker.order(remove=gone, make=cut.make)

    def _settle(self, group: Group, found: Seen) -> None:
        """A placement group has its places: write down where they are."""
        self._maker.found(found)
        ledger, moved = self.books.ledger, dict[VNodeId, MachineId]()
        try:
            if group.movable:
                for piece, host in zip(group.pieces, found.hosts, strict=True):
                    if piece.vnode is None or host is None or host not in ledger.machines:
                        continue
                    known = ledger.vnodes.get(piece.vnode)
                    if known is None:
                        ledger.add(self._vnode(group, piece.vnode, piece.resources, host))
                        self._note(group.cluster, "moved", f"{piece.vnode} is on {host[:8]} now")
                    elif known.machine != host:
                        moved[piece.vnode] = host
                if moved:
                    ledger.move(moved)
        except LedgerError as error:
            self._take_back(group.cluster, str(error))
            return
        if _has_places(group, found):
            self._ready.add(group.id)
        self._check_started(group.cluster)

    def _vnode(self, group: Group, id: VNodeId, resources: Resources, host: MachineId) -> VNode:
        """A fixed-size node that Ray has found a new machine for."""
        request = self.books.entries[group.cluster].request
        own = request.labels[int(id.rpartition("/")[2])] if request.labels else {}
        labels = {**self.books.ledger.machines[host].labels, **own}
        return VNode(
            id=id,
            cluster=group.cluster,
            parent=host,
            machine=host,
            kind=VNodeKind.FIXED,
            resources=resources,
            labels=labels,
        )

    def _there(self, group: Group, found: Seen) -> None:
        self._settle(group, found)
        if self.books.ledger.changed or self._maker.ordered:
            self.commit()
        # Else it has begun at most: a keeper that dies before the next commit finds that out again.

    def commit(self) -> Order:
        """Save the books, then have done what was ordered."""
        self._file.save(self.books)
        return self._maker.begin()

    # -- telling ------------------------------------------------------------------------------

    def _trouble(self, id: ClusterId, why: str) -> None:
        if self._troubles.get(id) != why and id in self.books.entries:
            self._troubles[id] = why
            self._note(id, "recovering", why)

    def _note(self, id: ClusterId, event: str, why: str) -> None:
        number = next(self._numbers)
        self._history.append(
            {
                "number": number,
                "time": self._clock(),
                "cluster": id,
                "event": event,
                "reason": why,
            }
        )
        log.info("%s: %s %s", id, event, why)

    def _wake(self, id: ClusterId) -> None:
        event = self._events.pop(id, None)
        if event is not None:
            event.set()


def _asking(entry: Entry) -> str:
    """What tells a request that is made again from another for the same name."""
    return f"{entry.request.id} asked at {entry.asked_at!r}"


def _vnode_id(cluster: ClusterId, index: int) -> VNodeId:
    return VNodeId(f"{cluster}/{index}")


def _has_places(group: Group, found: Seen) -> bool:
    """Whether all of a placement group is somewhere, but for what died with a machine."""
    return all(
        host is not None
        for piece, host in zip(group.pieces, found.hosts, strict=True)
        if piece.vnode is not None
    )


def _stray(found: Seen) -> Group:
    """A placement group of ours that is in no book."""
    pieces = tuple(
        Piece(vnode=None, resources=carried, machine=host)
        for carried, host in zip(found.carries, found.hosts, strict=True)
    )
    return Group(id=found.id, cluster=ClusterId(""), policy=SchedulingPolicy.PACK, pieces=pieces)
