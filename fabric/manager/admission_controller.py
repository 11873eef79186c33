"""Registrar: enters virtual clusters into the books and strikes them, and has done what follows.

Whoever gets places, loses them or gives them back does so here, so that books, their file,
placement groups and work stay in step. Everything is written into the books first; `commit` saves
them, and only then lets begin what was ordered meanwhile.

It never looks at Ray: the keeper does that, and tells it what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace

from ..core.books import Books, Entry
from ..core.ledger import Ledger, LedgerError
from ..core.places.admission import Expire, Wait, decide
from ..core.places.borrowing import give_back
from ..core.places.groups import Either, Group, GroupId, Recut, Stuck, groups_for, recut
from ..core.places.nomination import Admit, NoRoom, apply, never, refill
from ..core.places.placement import GPU
from ..core.places.request import Request
from ..core.records import DEFAULT, ROOT, Cluster, ClusterId, MachineId, VNode, VNodeId, VNodeKind
from ..core.resources import Resources
from ..errors import NameTaken, NeverFits, NoSuchCluster, NotInTime
from ..ray.control_plane.protocol import Seen
from .group_provisioner import Maker, Order
from .ledger_file import LedgerFile
from .settings import KeeperSettings
from .status import RECORD, Standing
from .work_router import Router

LOOSE_S = 60.0
"""How long Ray is believed that a machine's GPUs are free in small parts, if nothing changes."""


class Registrar:
    """The books of one Ray cluster, and all that has to agree with them."""

    def __init__(
        self,
        file: LedgerFile,
        maker: Maker,
        standing: Standing,
        *,
        clock: Callable[[], float],
        new_id: Callable[[ClusterId], GroupId],
        settings: KeeperSettings,
    ) -> None:
        self._file = file
        self._maker = maker
        self._standing = standing
        self._clock = clock
        self._new_id = new_id
        self._settings = settings
        self.books = Books()
        self.router = Router(self, clock)
        self.in_use: frozenset[GroupId] = frozenset()
        """The placement groups that something ran in when Ray was last looked at."""
        self._loose: dict[MachineId, tuple[frozenset[tuple[VNodeId, Resources]], float]] = {}
        """Machines whose GPUs are free in small parts: what lies there, until when that counts."""
        self._ready: set[GroupId] = set()
        """The placement groups that Ray has found places for."""

    # -- the books ----------------------------------------------------------------------------

    def load(self) -> None:
        """Read the books, and see from them who had not begun and who lacks something."""
        self.books = self._file.load()
        self._standing.restore({RECORD: self._file.note(RECORD)})
        self.router = Router(self, self._clock)
        for id, entry in self.books.entries.items():
            if entry.waiting:
                continue
            if not entry.begun:
                self._standing.starts(id)
            if any(self._missing(entry.request)):
                self._standing.trouble(id, "some of its nodes died")
        if DEFAULT not in self.books.ledger.clusters:
            self.books.ledger.begin(Cluster(id=DEFAULT, parent=ROOT), ())

    def commit(self) -> Order:
        """Save the books, then have done what was ordered."""
        self._file.save(self.books, self._standing.notes())
        return self._maker.begin()

    @property
    def lost(self) -> bool:
        """Whether the books could not be written, so that what is here may never have been."""
        return self._file.closed

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

    # -- letting in ---------------------------------------------------------------------------

    def check(self, request: Request) -> None:
        """Refuse what could never be let in. NameTaken, NoSuchCluster, NeverFits."""
        self._check_names(request)
        impossible = self._never(request)
        if impossible is not None:
            raise NeverFits(request.id, impossible.reason, impossible.most)

    def _never(self, request: Request) -> NoRoom | None:
        if request.parent == ROOT and self._settings.machines_come:
            return None
        return never(self.books.ledger, request)

    @property
    def actors_without_resources(self) -> int | None:
        """The most actors with no resources in one virtual cluster."""
        return self._settings.actors_without_resources

    @property
    def machines_come(self) -> bool:
        """Whether somebody adds machines for what waits."""
        return self._settings.machines_come

    def _check_names(self, request: Request) -> None:
        if request.id in (ROOT, DEFAULT):
            raise NameTaken(request.id)
        there = self.books.ledger.clusters.keys() - {DEFAULT}
        if request.parent != ROOT and request.parent not in there:
            raise NoSuchCluster(request.parent, sorted(there))

    def enter(self, entry: Entry) -> None:
        """Somebody asks for a virtual cluster of a new name: it is let in, or waits.

        NameTaken, NoSuchCluster for its parent, NeverFits; NotInTime if it is asked for again that
        has ended meanwhile.
        """
        id = entry.request.id
        if (over := self.books.answers.get(_asking(entry))) is not None:
            raise NotInTime(id, self._clock() - entry.asked_at, over[0])
        self._check_names(entry.request)
        self.books.enter(entry)
        self._standing.asked(id)
        self.admit()
        if id in self.books.entries and self.books.entries[id].waiting:
            impossible = self._never(entry.request)
            if impossible is not None:
                self._strike(id, impossible.reason)
                self.commit()
                raise NeverFits(id, impossible.reason, impossible.most)
        self.commit()

    def admit(self) -> None:
        """Let in whoever has places now."""
        entries, standing = self.books.entries, self._standing
        resting = {
            entries[id].request.parent
            for id in standing.resting
            if id in entries and entries[id].waiting
        }
        resting.update(id for id in standing.troubled if not self._all_there(id))
        waiting = [each for each in self.books.waiting if each.parent not in resting]
        decisions = decide(
            self.books.ledger,
            waiting,
            self._clock(),
            self._settings.policy,
            loose=self._loose_machines(),
        )
        standing.line_up(decisions)
        for decision in decisions.made.values():
            match decision:
                case Admit(request):
                    stuck = self._let_in(decision)
                    if stuck is not None:
                        standing.tell(Wait(request, 1, stuck.reason))
                        break
                case Expire(request, reason):
                    self.end(request.id, reason)

    def _let_in(self, found: Admit) -> Stuck | None:
        """Write down that somebody gets places, if the pieces can be cut so."""
        id, books = found.request.id, self.books
        until = self.due()
        right_in_ray = found.request.parent == ROOT  # then no pieces have to be cut for it
        pinned = self._standing.was_taken_back(id) or id in books.ledger.clusters
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
            self._standing.note(step.cluster, "borrowed", str(step.by))
        if books.entries[id].waiting:
            books.admit(id)
            self._standing.admitted(id)
            self.check_started(id)
        return None

    def check_started(self, id: ClusterId) -> None:
        """It is active once all that it holds is there."""
        if id in self._standing.starting and self._all_there(id):
            self.books.enter(replace(self.books.entries[id], begun=True))
            self._standing.active(id)

    def _all_there(self, id: ClusterId) -> bool:
        """Whether Ray has a place for each placement group of a virtual cluster."""
        return all(each.id in self._ready for each in self.books.groups.of_cluster(id))

    # -- taking back, ending ------------------------------------------------------------------

    def take_back(self, id: ClusterId, why: str) -> None:
        """Ray has not got what the books said was free: it waits again, where it stood."""
        if id not in self._standing.starting:
            return
        entry = self.books.entries[id]
        below = self.books.ledger.subtree(id)
        self._loosen(entry.request, below)
        self._remove(below)
        for each in below[:-1]:
            self._strike(each, f"{id}, which it is in, lost its places")
        self._strike_inside({*below}, "lost its places")
        self.books.enter(replace(entry, waiting=True))
        taken = f"others took what was free ({why.lower().replace('_', ' ')})"
        self._standing.waits_again(id, taken, self._settings.settle_s)

    def _loosen(self, request: Request, below: Sequence[ClusterId]) -> None:
        """Ray had no room for these GPUs: they are free on their machines in smaller parts."""
        ledger = self.books.ledger
        if not request.needs[GPU]:
            return
        if any(group.movable for group in self.books.groups.of_cluster(request.id)):
            machines = {each.id for each in ledger.machines.values() if each.total[GPU]}
        else:
            machines = {vnode.machine for id in below for vnode in ledger.of(id)}
        for machine in machines:
            self._loose[machine] = self._carved_on(machine, below), self._clock() + LOOSE_S

    def _loose_machines(self) -> frozenset[MachineId]:
        """Those on which nothing has changed since Ray had no room there, for a while."""
        now = self._clock()
        self._loose = {
            machine: (carved, until)
            for machine, (carved, until) in self._loose.items()
            if now < until and carved == self._carved_on(machine)
        }
        return frozenset(self._loose)

    def _carved_on(
        self, machine: MachineId, but: Container[ClusterId] = ()
    ) -> frozenset[tuple[VNodeId, Resources]]:
        vnodes = self.books.ledger.vnodes.values()
        there = (each for each in vnodes if each.parent == machine and each.cluster not in but)
        return frozenset((each.id, each.resources) for each in there)

    def end(self, id: ClusterId, why: str, *, on_record: bool = False) -> tuple[ClusterId, ...]:
        """Somebody ends, with all inside it; `on_record`: why outlives this manager."""
        ended: tuple[ClusterId, ...] = (id,)
        if id in self.books.ledger.clusters:
            ended = self.books.ledger.subtree(id)
            self._remove(ended)
        over = {*ended}
        for each in ended:
            if each == id:
                self._strike(each, why, on_record=on_record)
            else:
                self._strike(each, f"{id}, which it is in, ended")
        self._strike_inside(over, "ended")
        return ended

    def _strike_inside(self, over: set[ClusterId], why: str) -> None:
        """Nobody waits inside those that hold nothing any more; parents asked before children."""
        for entry in list(self.books.entries.values()):
            parent, id = entry.request.parent, entry.request.id
            if parent in over and id in self.books.entries:
                over.add(id)
                self._strike(id, f"{parent}, which it is in, {why}")

    def _strike(self, id: ClusterId, why: str, *, on_record: bool = False) -> None:
        entry = self.books.strike(id)
        if entry is not None:
            self.books.answer(_asking(entry), (why,))
        self._standing.ended(id, why, on_record=on_record)

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
        self.give_up(carriers)
        self._cut_anew(above)  # more room for the parents, so nothing can be in the way

    # -- what was lost, what is due -----------------------------------------------------------

    def refill(self) -> None:
        """Find new places for what was lost with a machine, where Ray does not do it itself."""
        for id in self._standing.troubled:
            entry = self.books.entries.get(id)
            if entry is None or entry.waiting or id in self._standing.starting:
                continue
            missing, least = self._missing(entry.request)
            if not missing and not least:
                if self._all_there(id):
                    self._standing.recovered(id)
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
            left.id in self.in_use or any(books.ledger.carved(vnode.id) for vnode in rest)
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

    def give_back(self) -> None:
        """Give back what is due and unused."""
        ledger = self.books.ledger
        of = {loan.vnode: ledger.vnodes[loan.vnode].cluster for loan in ledger.loans()}
        for loan in give_back(ledger, self._clock(), self._recut):
            self._standing.note(of[loan.vnode], "gave back", str(loan.resources))

    def _recut(self, ledger: Ledger, vnodes: frozenset[VNodeId]) -> bool:
        """Have vnodes cut as a ledger will have them; False if work is in the way."""
        cut = self.cut(ledger, vnodes)
        if isinstance(cut, Recut):
            self.order(cut)
        return isinstance(cut, Recut)

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
        busy = Either(self.books.works.busy, self.in_use)
        return recut(ledger, self.books.groups, ours, self._new_id, busy=busy, given=given)

    def due(self) -> float:
        """When what is borrowed now has to go back."""
        return self._clock() + self._settings.lease_s

    def order(self, cut: Recut) -> None:
        """Write a cut down, and order that it is made."""
        gone = [self.books.groups[id] for id in cut.remove]
        self.books.groups.apply(cut)
        self._ready.difference_update(cut.remove)
        self._maker.order(remove=gone, make=cut.make)

    def _cut_anew(self, vnodes: Iterable[VNodeId]) -> None:
        """Have made what those of these vnodes lack that are there."""
        cut = self.cut(self.books.ledger, {*vnodes} & self.books.ledger.vnodes.keys())
        if isinstance(cut, Recut):
            self.order(cut)

    def give_up(self, groups: Sequence[Group]) -> None:
        """Strike placement groups, and order that they are removed."""
        for group in groups:
            self.books.groups.drop(group.id)
            self._ready.discard(group.id)
        self._maker.order(remove=groups)

    def make_again(self, group: Group) -> None:
        """Ray no longer has a placement group: order it once more, or what it should carry."""
        self._ready.discard(group.id)
        if all(piece.vnode for piece in group.pieces):
            self._maker.order(make=[group])
        else:  # a part of it has nowhere to be
            self.books.groups.drop(group.id)
            self._cut_anew(group.vnodes)

    def is_settled(self, found: Seen) -> bool:
        """Whether a placement group is where the books already say."""
        return found.id in self._ready and self._maker.knows(found)

    def settle(self, group: Group, found: Seen) -> None:
        """A placement group has its places: write down where they are."""
        ledger, moved = self.books.ledger, dict[VNodeId, MachineId]()
        hosts = {host for piece, host in zip(group.pieces, found.hosts, strict=True) if piece.vnode}
        if group.movable and hosts - {None} - ledger.machines.keys():
            return  # one has just come or gone: the next look at Ray shows that as well
        self._maker.found(found)
        try:
            if group.movable:
                for piece, host in zip(group.pieces, found.hosts, strict=True):
                    if piece.vnode is None or host is None or host not in ledger.machines:
                        continue
                    known = ledger.vnodes.get(piece.vnode)
                    if known is None:
                        ledger.add(self._vnode(group, piece.vnode, piece.resources, host))
                        moves = f"{piece.vnode} is on {host[:8]} now"
                        self._standing.note(group.cluster, "moved", moves)
                    elif known.machine != host:
                        moved[piece.vnode] = host
                if moved:
                    ledger.move(moved)
        except LedgerError as error:
            self.take_back(group.cluster, str(error))
            return
        if has_places(group, found):
            self._ready.add(group.id)
        self.check_started(group.cluster)

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


def has_places(group: Group, found: Seen) -> bool:
    """Whether all of a placement group is somewhere, but for what died with a machine."""
    return all(
        host is not None
        for piece, host in zip(group.pieces, found.hosts, strict=True)
        if piece.vnode is not None
    )


def _asking(entry: Entry) -> str:
    """What tells a request that is made again from another for the same name."""
    return f"{entry.request.id} asked at {entry.asked_at!r}"


def _vnode_id(cluster: ClusterId, index: int) -> VNodeId:
    return VNodeId(f"{cluster}/{index}")
