"""RootScheduler: which virtual clusters of a Ray cluster start, wait, and leave for others.

It plans on a snapshot of the manager's state, and carries out what the ledger has room for. What
others must leave first is promised: claimant, places and the time that the others have are in the
cluster state before anything happens, so a manager that dies forgets none of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Protocol

from ...core.cluster_state import ClusterState, Entry, Notice
from ...core.places.groups import Stuck
from ...core.places.nomination import Admit, lacking
from ...core.records import ROOT, ClusterId, MachineId, VNode, VNodeId, VNodeKind
from ...core.scheduling.actions.round import PlanRound
from ...core.scheduling.plan import plan
from ...core.scheduling.records import (
    MoveMember,
    Rule,
    SchedulingPlan,
    StartMembers,
    StopMembers,
)
from ...core.scheduling.snapshot import SchedulingSnapshot
from ...core.scheduling.waiting_line import WaitingLine
from ..status import Statuses
from .asked import Asked, StoppedMember, stopped_by
from .decisions import departure_text, notice_text, relocated, still_valid
from .dry_run import would
from .live_facts import LiveFacts
from .live_usage import USAGE, LiveUsage
from .promises import Rooms, overdue, promised, without_room
from .queue_book import AppliedQueues, QueueBook
from .spared import first_spared
from .usage_samples import UsageSamples

PERIOD_S = 1.0
"""How often it plans while virtual clusters wait and nothing has changed."""
PATIENCE_S = 30.0
"""How long a claimant waits for nodes to become idle, before a plan may find it other places."""
log = logging.getLogger(__name__)


class PlacesControl(Protocol):
    """What the scheduler has done to the places of virtual clusters."""

    def let_in(self, found: Admit, why: str = "") -> Stuck | None:
        """Record places, and have Ray reserve them; Stuck if work is in the way."""

    def stop(self, id: ClusterId, why: str) -> None:
        """Take all places of a virtual cluster back; it waits again, at its place in line."""

    def drop(self, id: ClusterId, node: VNodeId, why: str) -> None:
        """Take back a node above the minimum with all in it, or what a flexible vnode borrowed."""

    def end(self, id: ClusterId, why: str) -> object:
        """End a virtual cluster."""

    def give_back(self, early: frozenset[VNodeId]) -> None:
        """Return loans that are unused; those of `early` vnodes before they are due."""

    def ray_will_take(self) -> Mapping[ClusterId, Sequence[VNode]]:
        """The places that lost nodes get, for which Ray itself finds machines."""

    def fragmented(self) -> frozenset[MachineId]:
        """The machines whose free shares of GPUs Ray has refused to give."""


class RootScheduler:
    """Decides about the virtual clusters that share the machines."""

    def __init__(
        self,
        state: ClusterState,
        statuses: Statuses,
        book: QueueBook,
        places: PlacesControl,
        *,
        clock: Callable[[], float],
        inline: int,
        usage: LiveUsage,
    ) -> None:
        """`inline`: with more machines and virtual clusters than that, others make the plans."""
        self._state = state
        self._statuses = statuses
        self._book = book
        self._places = places
        self._clock = clock
        self._inline = inline
        self._planned: Mapping[ClusterId, Asked] = {}
        """What the virtual clusters asked for when the last plan was begun."""
        self._machines: Sequence[MachineId] = ()
        """The machines of that plan."""
        self.stale_since: dict[ClusterId, float] = {}
        """Since when some lack nodes."""
        self.usage = usage
        self.facts = LiveFacts(state, book.queues, usage)
        """What it plans on."""
        self._stuck: dict[VNodeId, float] = {}
        """Until when the idle loans of some vnodes count as in use."""
        self._planned_at = 0.0
        self.news = True
        """Whether the queues, or what is saved of the state, have changed since the last plan."""
        self.wanted = False
        """Whether a plan is due that is too large to be made between two calls."""
        self._seen: SchedulingSnapshot | None = None
        """What the last plan was made of."""
        self.samples = UsageSamples()
        self._unsampled = self._unaccounted = self._unspared = True
        """Whether the state has changed since a sample, an account, or a look for free places."""
        self.waits = WaitingLine(state)
        """Why those wait that the last plan did not start."""

    def look(self) -> None:
        """Note what has changed in the state, before it is saved."""
        if self.facts.look():
            self.news = self._unsampled = self._unaccounted = self._unspared = True

    def notes(self) -> Mapping[str, Any]:
        """What to write beside the cluster state."""
        usage = self.usage.note(self._clock())
        return self._book.notes() if usage is None else {**self._book.notes(), USAGE: usage}

    def become(self, queues: AppliedQueues) -> None:
        """Plan by another file of queues from now on."""
        self.facts = LiveFacts(self._state, queues, self.usage)
        if self.facts.usage is None:
            self.usage.forget()
        self.news = self._unsampled = self._unaccounted = True

    def turn(self) -> None:
        """Carry out what is due, then plan if there is a reason to."""
        self.look()
        self._account()
        self._expire()
        self._settle_promises()
        self._spare_victims()
        if not self._has_work():
            self.waits = WaitingLine(self._state)
            self._sample()
            return
        if self.news or self._clock() >= self._planned_at + PERIOD_S:
            self._let_in_who_needs_nothing()
            if len(self._state.entries) + len(self._state.ledger.machines) > self._inline:
                self.wanted = True
            else:
                self._carry_out(self.prepared()(), lambda _: True)

    def prepared(self) -> Callable[[], SchedulingPlan]:
        """A plan of the state as it is now; it may be made in another thread."""
        self.wanted = self.news = False
        now = self._planned_at = self._clock()
        facts = self._refresh(now)
        self._planned, self._machines = dict(facts.asked), facts.machines
        self._seen = facts.snapshot(self._places.fragmented())
        return partial(plan, self._seen, now, facts.settings)

    def _refresh(self, now: float) -> LiveFacts:
        self.facts.refresh(
            now,
            resting=self._statuses.resting,
            stale_since=self.stale_since,
            expected=self._places.ray_will_take(),
            stuck=self.stuck,
        )
        return self.facts

    def carry_out(self, found: SchedulingPlan) -> None:
        """Do what still holds of a plan that was made meanwhile; the rest is planned anew."""
        self._carry_out(found, self.facts.unchanged(self._planned, self._machines))

    def _carry_out(self, found: SchedulingPlan, unchanged: Callable[[ClusterId], bool]) -> None:
        if self._seen is not None:
            self.samples.take(self._planned_at, self._seen, found.fairshare)
        told: dict[ClusterId, str] = {}
        valid = still_valid(found, stopped_by(found.decisions, self._planned), unchanged)
        rooms = Rooms(self._state, self.stuck)
        for vnodes in self._places.ray_will_take().values():
            rooms.take(vnodes)
        moves = dict[ClusterId, list[MoveMember]]()
        for decision, stopped in valid:
            id = ClusterId(decision.workload)
            if isinstance(decision, StopMembers):
                self._stop(id, decision, stopped, rooms)
            elif isinstance(decision, MoveMember):  # its claimant's start follows
                moves.setdefault(ClusterId(decision.claimant), []).append(decision)
            elif id in moves:
                rooms, told[id] = self._relocate(decision, moves.pop(id), rooms)
            elif decision.reason.rule is Rule.SURPLUS:
                self._grow(id, decision, rooms)
            else:
                told[id] = self._start(id, decision, rooms)
        self.news = self.news or len(valid) < len(found.decisions)
        self.waits = WaitingLine(self._state, found.waits, told)
        self._settle_promises()

    def leave(self, id: ClusterId, node: VNodeId | None = None) -> None:
        """Record that all has ended in a virtual cluster under notice, or on a node of it."""
        entry = self._state.entries.get(id)
        for notice in () if entry is None else entry.notices:
            if entry is not None and notice.node == node and not notice.ready:
                self._state.add(entry.given_anew(notice, replace(notice, ready=True)))

    def _sample(self) -> None:
        """Note what queues hold, if that has changed while none waits and so no plan says it."""
        now = self._clock()
        if self._unsampled and self.samples.due(now):
            self._unsampled = False
            self.facts.refresh(now, stuck=self.stuck)
            seen = self.facts.snapshot()
            self.samples.take(now, seen, PlanRound.of(seen, now, self.facts.settings).shares)

    def _account(self) -> None:
        """Count what the queues have held since the last turn, and see what they hold now."""
        self.facts.account(self._clock())
        if self._unaccounted and self.facts.usage is not None:
            self._unaccounted = False
            self.facts.refresh(self._clock(), stuck=self.stuck)

    # -- what is due --------------------------------------------------------------------------

    def _expire(self) -> None:
        now, index = self._clock(), self._state.index
        for entry in self._state.in_order(index.due & index.waiting):
            deadline, at_root = entry.request.deadline, entry.request.parent == ROOT
            if at_root and deadline is not None and deadline <= now and not entry.since:
                why = self._statuses.reason(entry.request.id)
                self._places.end(entry.request.id, f"its deadline is over; {why}")
                self.news = True

    def _settle_promises(self) -> None:
        """Keep promises that there is room for, and carry out the notices that are due."""
        while True:
            places = [entry for entry in promised(self._state) if not entry.relocates]
            kept = [self._keep(entry) for entry in places]
            found = overdue(self._state, self._clock(), self._lacking(), self.stuck)
            for id in found.dropped:
                self._state.add(replace(self._state.entries[id], promised=()))
                self._statuses.note(id, "promise withdrawn", "its places will not become free")
            for id, notice in found.withdrawn:
                self._state.add(self._state.entries[id].without(notice))
                whose = "its places are" if notice.node is None else f"{notice.node} is"
                self._statuses.note(id, "notice withdrawn", f"{whose} not needed any more")
            returned = self._return_idle(found.blocked)
            for id, notice in found.leaving:
                if notice.node is None:
                    self._places.stop(id, departure_text(notice))
                else:
                    self._places.drop(id, notice.node, departure_text(notice))
            if found.dropped or found.withdrawn or found.leaving:
                self.news = True
            if not (any(kept) or found.leaving or found.dropped or found.withdrawn or returned):
                return

    def _spare_victims(self) -> None:
        """Let claimants in whose places have become free elsewhere; their victims stay."""
        if not self._unspared:
            return
        self._unspared = False
        tried, state = set[ClusterId](), self._state
        if not any(state.entries[id].notices for id in state.index.moving):
            return
        while (found := self._first_spared(tried)) is not None:
            entry, vnodes = found
            tried.add(entry.request.id)
            if not self._make_room(vnodes):
                continue
            self._state.add(replace(entry, promised=()))
            why = "places became free before others had left theirs"
            if self._places.let_in(Admit(entry.request, (), vnodes), why) is None:
                self._settle_promises()  # withdraws the notices
            else:
                self._state.add(entry)

    def _first_spared(self, but: Set[ClusterId]) -> tuple[Entry, tuple[VNode, ...]] | None:
        facts = self._refresh(self._clock())
        snapshot = facts.snapshot(self._places.fragmented())
        return first_spared(self._state, facts, snapshot, stuck=self.stuck, but=but)

    def _keep(self, entry: Entry) -> bool:
        """Let a claimant in if its promised places are free now."""
        if not self._make_room(entry.promised):
            return False
        self._state.add(replace(entry, promised=()))
        stuck = self._places.let_in(Admit(entry.request, (), entry.promised))
        if stuck is not None:
            log.info("%s does not get its places yet: %s", entry.request.id, stuck.reason)
            return False
        return True

    def _make_room(self, vnodes: Sequence[VNode]) -> bool:
        """Whether these vnodes have room now; idle loans on their machines are returned if not."""
        full = without_room(self._state, vnodes)
        if self._idle_on(full):
            self._return_idle(full)
            full = without_room(self._state, vnodes)
        return not full

    def _return_idle(self, machines: Container[MachineId]) -> bool:
        """Return the idle loans on these machines; whether any was returned."""
        if not (early := self._idle_on(machines)):
            return False
        self._places.give_back(early)
        left = self._idle_on(machines) & early
        until = self._clock() + PATIENCE_S  # work without resources is in the way
        self._stuck.update(dict.fromkeys(left, until))
        return left != early

    def _idle_on(self, machines: Container[MachineId]) -> frozenset[VNodeId]:
        ledger = self._state.ledger
        loans = (loan for loan in ledger.loans() if ledger.machine_of(loan.vnode) in machines)
        return frozenset(loan.vnode for loan in loans if ledger.unused(loan))

    @property
    def stuck(self) -> frozenset[VNodeId]:
        """The vnodes whose idle loans could not be returned lately."""
        now = self._clock()
        self._stuck = {id: until for id, until in self._stuck.items() if until > now}
        return frozenset(self._stuck)

    def _lacking(self) -> set[ClusterId]:
        """The virtual clusters that have lost some of their nodes."""
        ledger, entries = self._state.ledger, self._state.entries
        return {
            id
            for id in self._statuses.troubled
            if id in entries
            and not entries[id].waiting
            and entries[id].request.parent == ROOT
            and any(lacking(ledger, entries[id].request))
        }

    # -- the plan -----------------------------------------------------------------------------

    def _has_work(self) -> bool:
        now, short = self._clock(), self._lacking()
        self.stale_since = {id: self.stale_since.get(id, now) for id in short}
        index, entries = self._state.index, self._state.entries
        return (
            bool(short)
            or any(not entries[id].promised for id in chain(*index.in_line.values()))
            or any(self._may_grow(entries[id]) for id in index.elastic)
        )

    def _may_grow(self, entry: Entry) -> bool:
        """Whether a virtual cluster may get more nodes than it has."""
        request = entry.request
        if request.parent != ROOT or entry.waiting or entry.notices:
            return False
        held = (each.kind is VNodeKind.FIXED for each in self._state.ledger.of(request.id))
        return sum(held) < request.most

    def _let_in_who_needs_nothing(self) -> None:
        index = self._state.index
        for entry in self._state.in_order(index.empty & index.waiting):
            if entry.request.parent == ROOT:
                self._places.let_in(Admit(entry.request, (), ()))

    def would(self, queues: AppliedQueues) -> dict[str, Any]:
        """What would start, leave, move and wait with another file."""
        now = self._clock()
        facts = LiveFacts(self._state, queues, self.usage)
        facts.refresh(now, resting=self._statuses.resting, stale_since=self.stale_since)
        return would(facts, now)

    def _start(self, id: ClusterId, decision: StartMembers, rooms: Rooms) -> str:
        """Let it in, or promise it the places; return why it still waits, if it does."""
        entry = self._state.entries[id]
        if entry.group is not None and not entry.waiting:
            return ""  # a user's placement group is made anew as a whole (decision 16)
        vnodes = self._vnodes(entry, decision)
        if not vnodes:
            return ""  # Ray itself finds other machines for its lost nodes
        if not rooms.take(vnodes):
            self.news = True
            return "others took its places as they were chosen"
        if not self._make_room(vnodes):
            self._state.add(replace(entry, promised=vnodes))
            self._statuses.note(id, "promised", f"places that others leave: {decision.reason}")
            return ""
        stuck = self._places.let_in(Admit(entry.request, (), vnodes), str(decision.reason))
        return "" if stuck is None else stuck.reason

    def _relocate(
        self, decision: StartMembers, moves: Sequence[MoveMember], rooms: Rooms
    ) -> tuple[Rooms, str]:
        """Promise a claimant its places, and all that move for it their new ones, all or nothing;
        return what is left, and why it still waits."""
        claimant = self._state.entries[ClusterId(decision.workload)]
        vnodes, trial = self._vnodes(claimant, decision), rooms.copy()
        if claimant.group is not None and not claimant.waiting:
            return rooms, ""
        at = self._clock() + self._book.file.settings.grace_s
        movers = relocated(self._state, self.facts, moves, at)
        for before, after in movers:
            trial.noticed(before, after)
        come = [*(after.promised for _, after in movers), vnodes]
        if any(before.moves for before, _ in movers) or not all(map(trial.take, come)):
            self.news = True
            return rooms, "others took its places as they were chosen"
        for _, after in movers:
            self._state.add(after)
            if after.leaves is not None:
                why = notice_text(after.leaves, self._clock())
                self._statuses.note(after.request.id, "notice", why, on_record=True)
        if vnodes:  # otherwise Ray itself finds machines for its lost nodes
            self._state.add(replace(claimant, promised=vnodes))
            why = f"places that others leave: {decision.reason}"
            self._statuses.note(claimant.request.id, "promised", why)
        return trial, ""

    def _vnodes(self, entry: Entry, decision: StartMembers) -> tuple[VNode, ...]:
        """The vnodes that members become, but for lost ones that Ray itself places again."""
        groups, facts, ledger = self._state.groups, self.facts, self._state.ledger
        held = {each.id for each in (*ledger.of(entry.request.id), *entry.promised)}
        found = facts.asked[entry.request.id].vnodes(
            ledger, entry.request, decision.members, facts.machines, held
        )
        movable = (any(each.movable for each in groups.of_vnode(vnode.id)) for vnode in found)
        return tuple(vnode for vnode, ray in zip(found, movable, strict=True) if not ray)

    def _grow(self, id: ClusterId, decision: StartMembers, rooms: Rooms) -> None:
        """Add a node above the minimum, if its place is free now."""
        entry = self._state.entries[id]
        if entry.waiting or entry.promised:
            return  # its minimum did not get its places
        vnodes = self._vnodes(entry, decision)
        if not (vnodes and rooms.take(vnodes) and self._make_room(vnodes)):
            return
        stuck = self._places.let_in(Admit(entry.request, (), vnodes))
        if stuck is None:
            for vnode in vnodes:
                host = self._state.ledger.machines[vnode.machine].hostname
                why = f"{vnode.id} on {host}; {decision.reason}"
                self._statuses.note(id, "node added", why)

    def _stop(
        self, id: ClusterId, decision: StopMembers, stopped: Sequence[StoppedMember], rooms: Rooms
    ) -> None:
        """Give it notice, or single nodes, or what it borrowed; one that is only promised places
        waits again."""
        entry, now = self._state.entries[id], self._clock()
        request = entry.request
        if entry.promised and (entry.waiting or entry.relocates):
            gone = {each.node for each in stopped}
            keeps = tuple(v for v in entry.promised if entry.relocates and v.id not in gone)
            self._state.add(replace(entry, promised=keeps))
            rooms.leaves([each for each in entry.promised if each not in keeps])
            if decision.claimant is not None:
                self._hand_over(id, ClusterId(decision.claimant))
            return
        own = {each.node for each in self.facts.asked[id].stoppable if not each.borrowed}
        goes = {each.node for each in stopped if not each.borrowed}
        noticed = {n.node for n in entry.nodes_leave if n.node and request.is_surplus(n.node)}
        left = own - goes - noticed
        nodes = [each for each in stopped if each.node in self._state.ledger.vnodes]
        for node, borrowed in nodes if left or not goes else [(None, False)]:
            stops = self._book.file.stops
            notice = Notice(
                at=now + (self._book.file.settings.grace_s if stops else PATIENCE_S),
                claimant=None if decision.claimant is None else ClusterId(decision.claimant),
                rule=str(decision.reason.rule),
                reason=decision.reason.text,
                node=node,
                ready=(borrowed and node not in self.stuck)
                or (not stops and not entry.says_what_ended),
                stops=stops,
            )
            rooms.noticed(entry, entry.given(notice))
            entry = entry.given(notice)
            self._statuses.note(id, "notice", notice_text(notice, now), on_record=stops)
        self._state.add(entry)

    def _hand_over(self, before: ClusterId, claimant: ClusterId) -> None:
        """Let those who leave for one claimant leave for another one, which gets its places."""
        for entry in self._state.in_order(self._state.index.moving):
            mine = [each for each in entry.notices if each.claimant == before]
            for notice in mine:
                entry = entry.given_anew(notice, replace(notice, claimant=claimant))
            if mine:
                self._state.add(entry)
