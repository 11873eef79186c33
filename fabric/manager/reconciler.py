"""Reconciler: makes Ray agree with the state of one Ray cluster's virtual clusters.

A decision goes into the state first, then into its file, and only then to Ray. A turn of the loop
compares all of Ray with the state, so a crash between any two steps loses nothing. It makes missing
placement groups, removes surplus ones of ours, and never touches others. It runs in one event loop
and never waits between reading the state and writing it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter

from ..core.audit import Escape, escapes, jobs_in
from ..core.cluster_state import Entry, JobId
from ..core.ledger import LedgerError
from ..core.places.groups import CarriedBundle, GroupId, PlacementGroupRecord
from ..core.ray_clusters.heads import HeadRecord, gone_of, restorable
from ..core.records import (
    DEFAULT,
    ClusterId,
    MachineId,
    ProcessId,
    SchedulingPolicy,
    VNode,
    VNodeKind,
    WorkId,
    flexible_id,
    has_started,
)
from ..core.resources import Resources
from ..core.routing.work import Work
from ..core.scheduling.records import SchedulingPlan
from ..errors import FabricError, NameTaken, NoSuchCluster, NotInTime, NotYours
from ..ray.control_plane.protocol import Observed, RayControl, Seen
from ..spec import VirtualCluster
from .admission.bundler import Bundler
from .admission.controller import AdmissionController, has_places
from .files.ledger_file import LedgerFile
from .group_provisioner import GroupProvisioner
from .routing.messages import Ask
from .routing.router import Router
from .routing.task_times import PROOF_S
from .settings import KeeperSettings
from .status import Statuses

PREFIX = "fedpilot"
ASKED = attrgetter("spec", "owner", "request.parent")
"""What is equal in a repeated request for a virtual cluster."""
Aside = Callable[[Callable[[], SchedulingPlan]], Awaitable[SchedulingPlan]]
log = logging.getLogger(__name__)


class Reconciler:
    """The virtual clusters of one Ray cluster."""

    def __init__(
        self,
        ray: RayControl,
        file: LedgerFile,
        *,
        clock: Callable[[], float],
        new_id: Callable[[ClusterId], GroupId],
        settings: KeeperSettings | None = None,
        aside: Aside = asyncio.to_thread,
    ) -> None:
        """`aside` runs a function while this loop goes on."""
        self._ray = ray
        self._aside = aside
        self._clock = clock
        self._settings = settings or KeeperSettings()
        self.state = file.load()
        self.statuses = Statuses(self.state, clock)
        self._provisioner = GroupProvisioner(
            ray,
            clock,
            self.state,
            name=f"{PREFIX}:{file.name}",
            patience_s=self._settings.grace_s,
            on_there=self._there,
        )
        self._bundler = Bundler(
            self.state, self._provisioner, clock=clock, new_id=new_id, settings=self._settings
        )
        self.router = Router(self._bundler, clock)
        """Decides where work runs; `admission.commit` carries it out."""
        self.admission = AdmissionController(
            file, self._provisioner, self._bundler, self.router, self.statuses, clock=clock
        )
        self.escapes: tuple[Escape, ...] = ()
        """The work outside its job's virtual cluster, as found by the last audit."""
        self._audited = self._knocked = 0.0
        self._planning: asyncio.Task[None] | None = None
        """A plan that is made in a thread."""

    # -- requests -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Look at Ray, and correct what has changed since the last manager."""
        self.admission.resume()
        await self.turn(everything=True)

    async def create(self, entry: Entry, *, wait_s: float = 0.0) -> str:
        """Admit a virtual cluster, or queue it; return its state after at most `wait_s`.

        A repeated request gets the same answer. NameTaken, NoSuchCluster for its parent, NeverFits;
        NotInTime once its deadline is over.
        """
        id = entry.request.id
        known = self.state.entries.get(id)
        if known is None:
            self.admission.add(entry)
        elif ASKED(known) != ASKED(entry):
            raise NameTaken(id)
        end = self._clock() + wait_s
        while id in self.state.entries and not has_started(self.statuses.state(id)):
            left = end - self._clock()
            if left <= 0:
                break
            await self.statuses.news(id, left)
        if id not in self.state.entries:
            raise NotInTime(id, self._clock() - entry.asked_at, self.statuses.ending(id))
        return self.statuses.state(id)

    async def delete(
        self, id: ClusterId, key: str = "", *, user: str = "", force: bool = False
    ) -> tuple[str, ...]:
        """End a virtual cluster and all inside it; return them, children before their parents.

        A repeated key gets the same answer. NoSuchCluster; NotYours if one of them belongs to
        another user, unless `force`.
        """
        if key in self.state.answers:
            return self.state.answers[key]
        if id not in self.state.entries:
            raise NoSuchCluster(id, sorted(self.state.entries))
        others = {e.request.id: e.user for e in self.state.within(id) if e.user not in ("", user)}
        if others and not force:
            raise NotYours(id, others, user)
        ended = self.admission.end(id, deletion(user, others), on_record=bool(others))
        if key:
            self.state.answer(key, ended)
        self.admission.admit()
        order = self.admission.commit()
        await order.removed.wait()
        return ended

    def restore(
        self, record: HeadRecord, names: Sequence[str], user: str
    ) -> tuple[list[ClusterId], dict[str, str]]:
        """Request these virtual clusters of earlier heads again, or all detached ones.

        Returns the restored ones, each with its old user, and why others are refused; repeatable.
        NoSuchCluster, before any change, for a name that is neither lost nor there.
        """
        entries, now = self.state.entries, self._clock()
        gone = gone_of(record, entries, now)
        for name in names:
            if name not in entries and all(each.id != name for each in gone):
                raise NoSuchCluster(name, [each.id for each in gone])
        found = restorable(gone, entries, names, now)
        refused = dict(found.refused)
        restored = [ClusterId(name) for name in names if name in entries]
        for lost in found.again:
            try:
                request = VirtualCluster.from_dict(lost.spec).request(
                    lost.id,
                    parent=lost.parent,
                    priority=lost.priority,
                    deadline=lost.deadline,
                    project=lost.project,
                    pool=lost.pool,
                    priority_class=lost.priority_class,
                    preemptible=lost.preemptible,
                )
                entry = Entry(request=request, spec=lost.spec, user=lost.user, asked_at=now)
                self.admission.add(entry)
            except NoSuchCluster:
                refused[lost.id] = f"{lost.parent}, which it was inside of, has no places yet"
            except FabricError as error:
                refused[lost.id] = str(error)
            else:
                self.statuses.note(lost.id, "restored", f"by {user or 'an unknown user'}")
                restored.append(lost.id)
        return restored, refused

    def attach(self, id: ClusterId, job: JobId) -> None:
        """Record that a job works inside a virtual cluster, and should use nothing outside it."""
        entry = self.state.entries.get(id)
        if entry is None:
            raise NoSuchCluster(id, sorted(self.state.entries))
        self.state.add(replace(entry, jobs=entry.jobs | {job}))
        self.admission.commit()

    async def place(self, ask: Ask) -> Work | None:
        """Say where work runs; None if it may not wait and there is no room."""
        if (first_ends := self.router.to_be_seen(ask)) is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(first_ends.wait(), PROOF_S)
        work = self.router.place(ask)
        self.admission.commit()
        return work

    async def place_all(self, ask: Ask, more: Sequence[WorkId]) -> list[Work]:
        """Say where a task runs, and promise places to at most `more` tasks like it."""
        first = await self.place(ask)
        also = self.router.place_also(ask, more)
        self.admission.commit()
        return [*([first] if first else []), *also]

    # -- one turn of the loop -----------------------------------------------------------------

    async def turn(self, *, everything: bool = False) -> None:
        """Look at Ray, and correct what differs from the cluster state.

        `everything` also finds waiting groups that a crashed reconciler has left behind.
        """
        if self._clock() >= self._knocked + self._settings.knock_s:
            self._knocked = self._clock()
            for id in await self._ray.bury():
                log.warning("machine %s is gone, and Ray was told so", id)
        skip, before = self._provisioner.in_flight, dict(self.state.entries)
        owed = frozenset(self._provisioner.owed)
        known = {group.id: len(group.pieces) for group in self.state.groups}
        seen = await self._ray.observe({**dict.fromkeys(owed, 0), **known}, everything=everything)
        dead = await self._ray.dead(self.state.works.actors)
        over = await self._over()
        skip.update(
            self._provisioner.in_flight, {each.id for each in self.state.groups} - known.keys()
        )
        self._provisioner.owed -= owed - seen.groups.keys()
        self._bundler.in_use = seen.in_use
        self._see_machines(seen)
        self._see_groups(seen, skip)
        self._see_jobs(seen, before)
        ended = (self.state.index.of_process.get(process, ()) for process in over)
        for entry in self.state.in_order(itertools.chain.from_iterable(ended)):
            if entry.request.id in self.state.entries:
                self.admission.end(entry.request.id, "the process that asked for it ended")
        self._see_others(seen)
        self.admission.refill()
        self.router.look(seen.in_use, dead, over)
        self.router.rebuild(seen.wanted, seen.in_use)
        self.admission.give_back()
        self.admission.admit()
        self.admission.commit()
        if self.admission.root.wanted and (self._planning is None or self._planning.done()):
            self._planning = asyncio.create_task(self._plan())
        await self._audit(seen)

    async def _plan(self) -> None:
        """Plan in a thread, and carry out what still holds then."""
        try:
            found = await self._aside(self.admission.root.prepared())
            self.admission.carry_out(found)
            self.admission.commit()
        except Exception:
            log.exception("a plan failed; the next one begins with the next look at Ray")
            self.admission.root.news = True

    async def _over(self) -> frozenset[ProcessId]:
        """The processes that have ended, among those that requested clusters or are silent."""
        asking = self.state.index.of_process.keys()
        silent = self.router.silent()
        over = await self._ray.over({*asking, *silent}) if asking or silent else frozenset()
        for process in silent - over:
            self.router.heard(process)
        return over

    def _see_machines(self, seen: Observed) -> None:
        ledger = self.state.ledger
        for machine in seen.machines:
            if ledger.machines.get(machine.id) != machine:
                with contextlib.suppress(LedgerError):  # it shrank below what it carries
                    ledger.machine_up(machine)
        for gone in sorted(ledger.machines.keys() - {machine.id for machine in seen.machines}):
            self.admission.lost_nodes.died(gone)

    def _see_groups(self, seen: Observed, skip: set[GroupId]) -> None:
        """Bring Ray's groups in line with the state, and the state with their machines."""
        for group in list(self.state.groups):
            if group.id in skip or group.id not in self.state.groups:
                continue
            found = seen.groups.get(group.id)
            if found is None:  # it is gone, but not by our order
                if group.cluster not in self.statuses.starting:
                    why = "one of its placement groups was removed by others"
                    self.statuses.trouble(group.cluster, why)
                self._bundler.make_again(group)
            elif not self._bundler.is_settled(found):
                self._see_group(group, found)
        for id in list(self.statuses.starting):
            self.admission.check_started(id)
        for found in seen.groups.values():
            known = found.id in self.state.groups or found.id in skip
            if self._provisioner.is_ours(found.name) and not known:
                self._provisioner.order(remove=[_stray(found)])

    def _see_group(self, group: PlacementGroupRecord, found: Seen) -> None:
        since = self.statuses.starting.get(group.cluster)
        if has_places(group, found):
            self.admission.settle(group, found)
        elif found.state == "pending" and self.admission.lost_nodes.refused(group, found.why):
            pass
        elif found.state == "pending" and since is not None:
            if self._clock() > since + self._settings.grace_s:
                self.admission.take_back(group.cluster, found.why)
        elif found.state == "rescheduling" and since is not None:
            self.statuses.interrupted(group.cluster, "a machine died with some of its nodes")
        elif found.state == "pending":
            self.statuses.trouble(group.cluster, "Ray has no room for one of its placement groups")

    def _there(self, group: PlacementGroupRecord, found: Seen) -> None:
        """Record a new placement group's machines, between two turns."""
        self.admission.settle(group, found)
        # A change of `begun` alone is not worth a write: a successor finds it again.
        if self.state.ledger.changed or self._provisioner.ordered:
            self.admission.commit()

    def _see_jobs(self, seen: Observed, before: Mapping[ClusterId, Entry]) -> None:
        """End what belongs to ended jobs; entries that are not in `before` may be too new."""
        index = self.state.index.of_job
        some = set[ClusterId]().union(*(index[job] for job in index.keys() - seen.jobs))
        for id in [each.request.id for each in self.state.in_order(some & before.keys())]:
            now, entry = self.state.entries.get(id), before[id]
            if now is None:
                continue
            if entry.owner is not None and entry.owner not in seen.jobs:
                self.admission.end(id, "its job ended")
            elif over := entry.jobs - seen.jobs:
                self.state.add(replace(now, jobs=now.jobs - over))

    def _see_others(self, seen: Observed) -> None:
        """Record what runs outside all virtual clusters as the default virtual cluster."""
        ledger = self.state.ledger
        ours: dict[MachineId, list[Resources]] = {}
        for found in seen.groups.values():
            if found.id in self.state.groups or self._provisioner.is_ours(found.name):
                for host, carried in zip(found.hosts, found.carries, strict=True):
                    if host is not None:
                        ours.setdefault(host, []).append(carried)
        for machine in seen.machines:
            fresh = self._provisioner.fresh(machine.id, self._settings.settle_s)
            available = seen.available.get(machine.id)
            if fresh or available is None or machine.id not in ledger.machines:
                continue
            taken = _outside(machine.total, available, tuple(ours.get(machine.id, ())))
            id = flexible_id(DEFAULT, machine.id)
            before = ledger.vnodes.get(id)
            if before is not None and before.resources == taken:
                continue
            if before is not None:
                ledger.drop(id)
            if taken and (size := taken & ledger.free(machine.id)):
                vnode = VNode(
                    id=id,
                    cluster=DEFAULT,
                    parent=machine.id,
                    machine=machine.id,
                    kind=VNodeKind.FLEXIBLE,
                    resources=size,
                    labels=machine.labels,
                )
                ledger.add(vnode)

    async def _audit(self, seen: Observed) -> None:
        if self._clock() < self._audited + self._settings.audit_s:
            return
        self._audited = self._clock()
        jobs = jobs_in(self.state, seen.named)
        running = await self._ray.running(jobs.keys()) if jobs else ()
        before = {escape.what.id for escape in self.escapes}
        self.escapes = escapes(self.state, jobs, running, self._provisioner.past)
        for escape in self.escapes:
            if escape.what.id not in before:
                self.statuses.note(escape.cluster, "escape", escape.reason)


@lru_cache(maxsize=20_000)
def _outside(total: Resources, available: Resources, ours: tuple[Resources, ...]) -> Resources:
    """What is taken of a machine by others than us; most machines are as they were before."""
    return total.beyond(available).beyond(Resources.total(ours))


def _stray(found: Seen) -> PlacementGroupRecord:
    """A placement group of ours that is not in the cluster state."""
    pieces = tuple(
        CarriedBundle(vnode=None, resources=carried, machine=host)
        for carried, host in zip(found.carries, found.hosts, strict=True)
    )
    return PlacementGroupRecord(
        id=found.id, cluster=ClusterId(""), policy=SchedulingPolicy.PACK, pieces=pieces
    )


def deletion(user: str, others: Mapping[ClusterId, str]) -> str:
    """The reason of a deletion, which names the owners if they differ from the user."""
    if not others:
        return "it was deleted"
    whose = ", ".join(f"{id} of {who}" for id, who in others.items())
    return f"it was deleted with --force by {user or 'an unknown user'}, not its owner: {whose}"
