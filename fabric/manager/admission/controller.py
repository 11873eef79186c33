"""AdmissionController: admits virtual clusters, ends them, and finds places for what they lost.

It alone gives and takes places, so that state, file, placement groups and work stay in step. A
change goes into the state first; `commit` saves the state, then begins the orders.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...core.cluster_state import Entry
from ...core.ledger import Ledger, LedgerError
from ...core.places.admission import Decision, Expire, QueuedAt, decide
from ...core.places.borrowing import give_back
from ...core.places.groups import PlacementGroupRecord, Rebundling, Stuck, groups_for
from ...core.places.nomination import Admit, apply, lacking, lost_nodes, refill
from ...core.places.request import Request
from ...core.records import (
    DEFAULT,
    ROOT,
    ClusterId,
    MachineId,
    PlacedCluster,
    VNode,
    VNodeId,
    VNodeKind,
    fixed_id,
    number_of,
)
from ...core.resources import Resources
from ...core.scheduling.records import SchedulingPlan
from ...errors import NeverFits, NotInTime
from ...ray.control_plane.protocol import Seen
from ..files.ledger_file import QUEUES, LedgerFile
from ..group_provisioner import GroupProvisioner, Order
from ..routing.router import Router
from ..scheduling.live_usage import USAGE, LiveUsage
from ..scheduling.queue_book import QueueBook
from ..scheduling.root_scheduler import RootScheduler
from ..status import RECORD, Statuses
from .borrowed import BorrowedPlaces
from .bundler import Bundler
from .fragmentation import Fragmentation
from .lost_nodes import LostNodes, taken_by_others
from .request_checks import RequestChecks
from .unplaced import Unplaced

log = logging.getLogger(__name__)


class AdmissionController:
    """The virtual clusters of one Ray cluster, with places or waiting."""

    def __init__(
        self,
        file: LedgerFile,
        provisioner: GroupProvisioner,
        bundler: Bundler,
        router: Router,
        statuses: Statuses,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.state = bundler.state
        self._file = file
        self._provisioner = provisioner
        self._bundler = bundler
        self._router = router
        self._statuses = statuses
        self._clock = clock
        self._settings = bundler.settings
        self._fragmentation = Fragmentation(self.state, clock)
        self.lost_nodes = LostNodes(bundler, router, statuses, self.end)
        """What follows when single nodes are gone."""
        self._borrowed = BorrowedPlaces(bundler, router, statuses, self.end, self.give_back)
        self.book = QueueBook(file.note(QUEUES))
        self._checks = RequestChecks(self.state, self.book, self._settings)
        self.root = RootScheduler(
            self.state,
            statuses,
            self.book,
            self,
            clock=clock,
            inline=self._settings.plan_inline,
            usage=LiveUsage(file.note(USAGE)),
        )
        """Decides about the virtual clusters that share the machines."""
        self.unplaced = Unplaced(self.state, statuses, router)
        """What has no places."""
        self._nested: Iterable[Decision] = ()
        """The last decisions on virtual clusters inside others."""

    # -- the cluster state --------------------------------------------------------------------

    def resume(self) -> None:
        """Find which virtual clusters in the loaded state were starting or lack nodes."""
        self._statuses.restore({RECORD: self._file.note(RECORD)})
        for id, entry in self.state.entries.items():
            if entry.waiting:
                continue
            if not entry.begun:
                self._statuses.starts(id)
            ledger, request = self.state.ledger, entry.request
            if lost_nodes(ledger, request) or any(lacking(ledger, request)):
                self._statuses.trouble(id, "some of its nodes died")
        if DEFAULT not in self.state.ledger.clusters:
            self.state.ledger.begin(PlacedCluster(id=DEFAULT, parent=ROOT), ())

    def commit(self) -> Order:
        """Save the cluster state, then begin the orders."""
        self.root.look()
        self._file.save(self.state, {**self._statuses.notes(), **self.root.notes()})
        return self._provisioner.begin()

    @property
    def lost(self) -> bool:
        """Whether the state could not be saved, so that the one in memory may not be valid."""
        return self._file.closed

    # -- admission ----------------------------------------------------------------------------

    def check(self, request: Request, user: str = "") -> None:
        """Refuse what is not admitted, now or ever.

        NameTaken, NoSuchCluster, QueueRefused, NeverFits.
        """
        self._checks.check(request, user or None)

    def add(self, entry: Entry) -> None:
        """Admit a virtual cluster with a new name, or queue it.

        NameTaken, NoSuchCluster for its parent, QueueRefused, NeverFits; NotInTime if it has ended
        meanwhile.
        """
        id = entry.request.id
        if (over := self.state.answers.get(_asking(entry))) is not None:
            raise NotInTime(id, self._clock() - entry.asked_at, over[0])
        entry = replace(entry, request=self._checks.accepted(entry.request, entry.user))
        self.state.add(entry)
        self._statuses.asked(id)
        self.admit()
        waits = id in self.state.entries and self.state.entries[id].waiting
        if waits and (impossible := self._checks.never(entry.request)):
            self._end_entry(id, impossible.reason)
            self.commit()
            raise NeverFits(id, impossible.reason, impossible.most)
        self.commit()

    def apply_queues(
        self, document: Mapping[str, Any], revision: int | None, user: str, *, dry_run: bool
    ) -> Mapping[str, Any]:
        """Replace the file of queues, and plan by it. StaleRevision, QueueInUse, SpecError."""
        found = self.book.applied(document, revision, user, self._clock(), self.state)
        if dry_run:
            return {"revision": self.book.revision, "would": self.root.would(found)}
        self.book.become(found)
        self.root.become(found)
        self.admit()
        self.commit()
        return {"revision": self.book.revision}

    def admit(self) -> None:
        """Admit all that get places now."""
        self.root.turn()
        self._admit_nested()
        self._statuses.line_up(self._nested, self.root.waits)

    def carry_out(self, found: SchedulingPlan) -> None:
        """Do what still holds of a plan that was made meanwhile."""
        self.root.carry_out(found)
        self._statuses.line_up(self._nested, self.root.waits)

    def _admit_nested(self) -> None:
        """Admit virtual clusters inside others, each parent's in the order of its queue."""
        entries, statuses = self.state.entries, self._statuses
        resting = {
            entries[id].request.parent
            for id in statuses.resting
            if id in entries and entries[id].waiting
        }
        resting.update(id for id in statuses.troubled if not self._bundler.all_there(id))
        waiting = [each for each in self.state.waiting_inside if each.parent not in resting]
        self._nested = ()
        if not waiting:
            return
        decisions = decide(
            self._without_lost_nodes(self.state.lendable)[0],
            waiting,
            self._clock(),
            self._settings.policy,
            fragmented=self._fragmentation.machines(),
        )
        self._nested = decisions
        for decision in decisions.made.values():
            match decision:
                case Admit(request):
                    stuck = self.let_in(decision)
                    if stuck is not None:
                        statuses.tell(QueuedAt(request, 1, stuck.reason))
                        break
                case Expire(request, reason):
                    self.end(request.id, reason)

    def ray_will_take(self) -> dict[ClusterId, tuple[VNode, ...]]:
        """Places for the lost nodes that Ray itself finds other machines for.

        Ray may choose other machines; `_make_way` is for that.
        """
        found = self._without_lost_nodes(self.state.ledger)[1]
        return {id: nodes for id, nodes in found.items() if nodes[0].parent == nodes[0].machine}

    def _without_lost_nodes(
        self, ledger: Ledger
    ) -> tuple[Ledger, dict[ClusterId, tuple[VNode, ...]]]:
        """A ledger with places for lost nodes, and these."""
        groups = self.state.groups
        found: dict[ClusterId, tuple[VNode, ...]] = {}
        for id in self._statuses.troubled:
            entry = self.state.entries.get(id)
            if entry is None or entry.waiting or id in self._statuses.starting:
                continue
            movable = [
                n
                for n in lost_nodes(ledger, entry.request)
                if any(g.movable for g in groups.of_vnode(fixed_id(id, n)))
            ]
            if movable:
                places = refill(ledger, entry.request, movable, Resources())
                if isinstance(places, Admit):
                    ledger = ledger.copy() if ledger is self.state.ledger else ledger
                    apply(ledger, places, self._clock())
                    found[id] = places.vnodes
        return ledger, found

    def let_in(self, found: Admit, why: str = "") -> Stuck | None:
        """Record the places of a virtual cluster; Stuck if work prevents the rebundling."""
        id, state = found.request.id, self.state
        until = self._bundler.due()
        right_in_ray = found.request.parent == ROOT  # then nothing is rebundled for it
        pinned = (  # Ray itself places a user's placement group again, and under the same id
            (right_in_ray and self.book.revision > 0 and state.entries[id].group is None)
            or self._statuses.was_taken_back(id)
            or id in state.ledger.clusters
        )
        twin = state.ledger if right_in_ray else state.ledger.copy()
        apply(twin, found, until)
        fixed = groups_for(
            found, self._bundler.new_id, pinned=pinned, whole=state.entries[id].group
        )
        pieces = [piece for group in fixed for piece in group.pieces]
        given = {piece.vnode: piece.resources for piece in pieces if piece.vnode is not None}
        steps = [step for growth in found.growths for step in growth.steps]
        touched = {
            *(vnode.id for vnode in found.vnodes),
            *(VNodeId(vnode.parent) for vnode in found.vnodes),
            *(step.vnode for step in steps),
            *(VNodeId(step.parent) for step in steps),
        } & (twin.vnodes.keys() - given.keys())  # those in `given` get exactly what they should
        cut = self._bundler.cut(twin, touched, given)
        if isinstance(cut, Stuck):
            return cut
        if not right_in_ray:
            apply(state.ledger, found, until)
        self._bundler.order(Rebundling(cut.remove, (*fixed, *cut.make)))
        for step in steps:
            self._statuses.note(step.cluster, "borrowed", str(step.by))
        if state.entries[id].waiting:
            state.admit(id, self._clock())
            self._statuses.admitted(id, why)
            self.check_started(id)
        return None

    def check_started(self, id: ClusterId) -> None:
        """Set a starting virtual cluster active if Ray has placed all its groups."""
        if id in self._statuses.starting and self._bundler.all_there(id):
            self.state.add(replace(self.state.entries[id], begun=True))
            self._statuses.active(id)

    # -- ends ---------------------------------------------------------------------------------

    def take_back(self, id: ClusterId, why: str) -> None:
        """Return a virtual cluster to its position in the queue, since Ray could not place it."""
        if id not in self._statuses.starting:
            return
        entry = self.state.entries[id]
        self._fragmentation.refused(entry.request, self.state.ledger.subtree(id))
        self._back_in_line(id)
        self._statuses.waits_again(id, taken_by_others(why), self._settings.settle_s)

    def stop(self, id: ClusterId, why: str) -> None:
        """Take all places of a virtual cluster back for others; it waits at its place in line."""
        notice = self.state.entries[id].leaves
        self._back_in_line(id)
        self.state.add(replace(self.state.entries[id], stopped=notice))
        self._statuses.stopped(id, why)

    def drop(self, id: ClusterId, node: VNodeId, why: str) -> None:
        """Take a node above the minimum back, or what a flexible vnode borrowed, with its work."""
        if self.state.entries[id].request.is_surplus(node):
            self.lost_nodes.left(node, why)
        else:
            self._borrowed.take_back(node, why)
            self.lost_nodes.forget_notices(id, (node,))

    def _back_in_line(self, id: ClusterId) -> None:
        """Free all places of a virtual cluster, end all inside it, and let it wait."""
        below = self.state.ledger.subtree(id)
        self._free_places(below)
        for each in below[:-1]:
            self._end_entry(each, f"{id}, which it is in, lost its places")
        self._end_waiting_inside(below, "lost its places")
        entry = self.state.entries[id]
        self.state.add(entry.in_line_again(self._clock()))

    def end(self, id: ClusterId, why: str, *, on_record: bool = False) -> tuple[ClusterId, ...]:
        """End a virtual cluster and all inside it; `on_record`: the reason is saved on disk."""
        ended: tuple[ClusterId, ...] = (id,)
        if id in self.state.ledger.clusters:
            ended = self.state.ledger.subtree(id)
            self._free_places(ended)
        for each in ended[:-1]:
            self._end_entry(each, f"{id}, which it is in, ended")
        self._end_entry(id, why, on_record=on_record)
        self._end_waiting_inside(ended, "ended")
        return ended

    def _end_waiting_inside(self, over: Iterable[ClusterId], why: str) -> None:
        """End the requests inside clusters that lost their places."""
        for entry in self.state.all_inside(over):
            self._end_entry(entry.request.id, f"{entry.request.parent}, which it is in, {why}")

    def _end_entry(self, id: ClusterId, why: str, *, on_record: bool = False) -> None:
        self._statuses.ended(id, why, on_record=on_record)
        entry = self.state.remove(id)
        if entry is not None:
            self.state.answer(_asking(entry), (why,))

    def _free_places(self, ended: tuple[ClusterId, ...]) -> None:
        ledger, groups = self.state.ledger, self.state.groups
        mine = [vnode for each in ended for vnode in ledger.of(each)]
        carriers = [group for each in ended for group in groups.of_cluster(each)]
        for each in ended:
            self._router.end(each)
        ledger.end(ended[-1])
        self._without(carriers, {VNodeId(vnode.parent) for vnode in mine})

    def _without(self, carriers: Sequence[PlacementGroupRecord], above: set[VNodeId]) -> None:
        """Remove placement groups, and give their resources to the vnodes they were carved from."""
        self._bundler.give_up(carriers)
        ledger = self.state.ledger  # the parents get more, so no work can be in the way
        self._bundler.rebundle(ledger, above & ledger.vnodes.keys())

    # -- repairs, and the return of loans -----------------------------------------------------

    def refill(self) -> None:
        """Find new places for what a dead machine took, unless Ray does so itself."""
        for id in self._statuses.troubled:
            entry = self.state.entries.get(id)
            if entry is None or entry.waiting or id in self._statuses.starting:
                continue
            missing, least = lacking(self.state.ledger, entry.request)
            if not missing and not least:
                if self._bundler.all_there(id):
                    self._statuses.recovered(id)
                continue
            carriers = {n: self.state.groups.of_vnode(fixed_id(id, n)) for n in missing}
            pinned = [n for n in missing if not any(group.movable for group in carriers[n])]
            if pinned and entry.group is not None:
                self._begin_anew(entry)
            elif (pinned or least) and entry.request.parent != ROOT:  # otherwise it claims them
                found = refill(self.state.ledger, entry.request, pinned, least)
                if isinstance(found, Admit):
                    self.let_in(found)

    def _begin_anew(self, entry: Entry) -> None:
        """Make all of a placement group again under its id, once the rest is idle (decision 16)."""
        id, state = entry.request.id, self.state
        left = state.groups.get(entry.group) if entry.group else None
        rest = state.ledger.of(id)
        if left is not None and (
            left.id in self._bundler.in_use or any(state.ledger.carved(vnode.id) for vnode in rest)
        ):
            return
        twin = state.ledger.copy()
        for vnode in rest:
            twin.drop(vnode.id)
        missing, least = lacking(twin, entry.request)
        found = refill(twin, entry.request, missing, least)
        if not isinstance(found, Admit):
            return
        for vnode in rest:
            state.ledger.drop(vnode.id)
        self._without([left] if left else [], {VNodeId(vnode.parent) for vnode in rest})
        self.let_in(found)

    def give_back(self, early: frozenset[VNodeId] = frozenset()) -> None:
        """Return the loans that are due and unused; those of `early` vnodes are due now."""
        ledger = self.state.ledger
        of = {loan.vnode: ledger.vnodes[loan.vnode].cluster for loan in ledger.loans()}
        for loan in give_back(ledger, self._clock(), self._bundler.rebundle, early=early):
            self._statuses.note(of[loan.vnode], "gave back", str(loan.resources))

    def fragmented(self) -> frozenset[MachineId]:
        """The machines whose free shares of GPUs Ray has refused to give."""
        return self._fragmentation.machines()

    # -- machines -----------------------------------------------------------------------------

    def settle(self, group: PlacementGroupRecord, found: Seen) -> None:
        """Record where Ray has placed a placement group."""
        ledger = self.state.ledger
        places = {
            piece.vnode: host
            for piece, host in zip(group.pieces, found.hosts, strict=True)
            if piece.vnode is not None and host is not None
        }
        if group.movable and places.values() - ledger.machines.keys():
            return  # a machine has just joined or left: the next look at Ray also shows that
        while group.movable:
            try:
                self._move(group, places)
                break
            except LedgerError as error:
                if group.cluster in self._statuses.starting:
                    self.take_back(group.cluster, str(error))
                    return
                if not self._make_way(group.cluster, {*places.values()}):
                    log.info("%s was moved, and waits for the ledger: %s", group.cluster, error)
                    return
        self._provisioner.found(found)
        if has_places(group, found):
            self._bundler.placed(group)
        self.check_started(group.cluster)

    def _move(self, group: PlacementGroupRecord, places: Mapping[VNodeId, MachineId]) -> None:
        """Record the machines of a group's vnodes; LedgerError if one has no room."""
        ledger = self.state.ledger
        known = places.keys() & ledger.vnodes.keys()
        # Those that moved leave their places first, which new vnodes may need.
        ledger.move({id: places[id] for id in known if ledger.machine_of(id) != places[id]})
        for piece in group.pieces:
            if piece.vnode is not None and piece.vnode in places.keys() - known:
                host = places[piece.vnode]
                ledger.add(self._vnode(group, piece.vnode, piece.resources, host))
                moves = f"{piece.vnode} is on {host[:8]} now"
                self._statuses.note(group.cluster, "moved", moves)

    def _make_way(self, moved: ClusterId, hosts: set[MachineId]) -> bool:
        """Take back the cluster that began to start last on machines where Ray moved another one.

        Ray has no room left for it there. False if none starts there.
        """
        ledger, starting = self.state.ledger, self._statuses.starting
        there = [id for id in starting if any(v.parent in hosts for v in ledger.of(id))]
        last = max(there, key=lambda id: (starting[id], id), default=None)
        if last is None:
            return False
        self.take_back(last, f"{moved} was moved there")
        return True

    def _vnode(
        self, group: PlacementGroupRecord, id: VNodeId, resources: Resources, host: MachineId
    ) -> VNode:
        own = self.state.entries[group.cluster].request.own_labels(number_of(id))
        labels = {**self.state.ledger.machines[host].labels, **own}
        return VNode(
            id=id,
            cluster=group.cluster,
            parent=host,
            machine=host,
            kind=VNodeKind.FIXED,
            resources=resources,
            labels=labels,
        )


def has_places(group: PlacementGroupRecord, found: Seen) -> bool:
    """Whether Ray has placed a whole placement group, except what died with a machine."""
    return all(
        host is not None
        for piece, host in zip(group.pieces, found.hosts, strict=True)
        if piece.vnode is not None
    )


def _asking(entry: Entry) -> str:
    """A key that distinguishes a repeated request from a new one with the same name."""
    return f"{entry.request.id} asked at {entry.asked_at!r}"
