"""Router: sends the work inside virtual clusters to placement groups, and keeps account of it.

Whoever submits a task or an actor chooses an id for it and asks where it runs. The answer is always
a placement group, sometimes one that does not exist yet: Ray then holds the work until the router
has had it made. The id of the work is the id of that placement group.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Protocol

from ..core.books import Books
from ..core.ledger import Ledger
from ..core.places.borrowing import borrow
from ..core.places.groups import Group, GroupId, Piece, Recut, Stuck, was_made_for
from ..core.records import ClusterId, ProcessId, SchedulingPolicy, Use, VNodeId, VNodeKind, WorkId
from ..core.resources import Resources
from ..core.routing.eligibility import Never
from ..core.routing.pace import SOON_S, Paces, batch_limit
from ..core.routing.scheduling import (
    ANY,
    SOMETHING,
    Apart,
    Hold,
    Into,
    Queue,
    apart,
    choose,
    shortest_queue,
    slots,
)
from ..core.routing.work import NOBODY, Work, WorkState, alike
from ..core.selectors import Selector
from ..errors import NoSuchCluster, TooLarge
from ..pickle_names import travels
from ..spec import ACTORS

TRIES = 16
"""How many different demands that cannot be met are looked at in one virtual cluster at a time."""

SURE_S = 1.0
"""How long Ray must wait for a placement group before it is made once more: what Ray says that it
waits for is a little old, and may have run and ended."""

REBUILT_S = 5.0
"""After which work that Ray did once more is over, if nothing runs in its placement group."""

PROOF_S = 0.1
"""How long the first of a kind may take to end before its like are no longer taken to be short: as
long as it takes Ray to make a placement group for them."""

SILENCE_S = 20.0
"""After which Ray is asked whether a process that says nothing is still there."""


Kind = tuple[ClusterId, str, Hashable]
"""Of a kind are tasks of one function that are alike, in one virtual cluster."""


class Fabric(Protocol):
    """What the router needs of the registrar."""

    books: Books

    @property
    def machines_come(self) -> bool: ...
    @property
    def actors_without_resources(self) -> int | None: ...
    def cut(
        self, ledger: Ledger, vnodes: Iterable[VNodeId], given: Mapping[VNodeId, Resources], /
    ) -> Recut | Stuck: ...
    def order(self, cut: Recut, /) -> None: ...
    def due(self) -> float: ...


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A task or an actor that is about to be submitted."""

    id: WorkId
    """18 bytes in hex, which name a placement group if it needs one of its own."""
    cluster: ClusterId
    demand: Resources
    selector: Selector
    owner: ProcessId
    """The process that submits it."""
    actor: bool = False
    function: str = ""
    """What a task calls: tasks of one function last alike."""
    wait: bool = True
    """Whether it may wait; otherwise it is refused where there is no room now."""
    inside: tuple[GroupId, int] | None = None
    """The bundle of what submits it, if it waits for the room of that, which may end before."""


@travels
@dataclass(frozen=True, slots=True)
class Placed:
    """Where work runs, as its submitter is told."""

    group: GroupId
    bundle: int
    sizes: tuple[Mapping[str, float], ...]
    """What the bundles of the placement group have; nothing if it does not exist yet."""
    state: str


class Router:
    """Work and where it runs."""

    def __init__(self, fabric: Fabric, clock: Callable[[], float]) -> None:
        self._fabric = fabric
        self._clock = clock
        self._heard: dict[ProcessId, float] = {}
        self._why: dict[WorkId, Hold] = {}
        self._batches: dict[tuple[ClusterId, Hashable], tuple[GroupId, int]] = {}
        """The placement group that tasks alike were promised last, and how many of them."""
        self._missed: dict[GroupId, float] = {}
        """Placement groups that Ray waits for and nobody knows, and since when."""
        self._rebuilt: dict[WorkId, float] = {}
        """Work that Ray does once more on its own, and when it was last seen to."""
        self._paces: Paces[Kind] = Paces()
        self._begun: dict[Kind, float] = {}
        """When the first task of a kind began of which none has ended yet."""
        self._first_ends: dict[Kind, asyncio.Event] = {}
        self._numbers = itertools.count(
            max((work.number for work in fabric.books.works), default=0) + 1
        )

    def place(self, ask: Ask) -> Work | None:
        """Say where work runs; None if it may not wait and there is no room.

        Asking again is answered like the first time. NoSuchCluster; TooLarge for what could never
        run there.
        """
        books = self._fabric.books
        self._heard[ask.owner] = self._clock()
        if ask.id in books.works:
            return books.works[ask.id]
        if ask.cluster not in books.ledger.clusters:
            raise NoSuchCluster(ask.cluster, sorted(books.ledger.clusters))
        self._check_actors(ask)
        found = Queue(*ask.inside) if ask.inside else self._choose(ask, lasting=ask.actor)
        if isinstance(found, Never):
            raise TooLarge(found.reason)
        work = self._work(ask)
        match found:
            case Into(group, bundle, vnode):
                self._start(replace(work, group=group, bundle=bundle), vnode)
            case Apart() if self._set_apart(work, found):
                pass
            case Apart() if self._may_share(ask) and isinstance(into := self._choose(ask), Into):
                self._start(replace(work, group=into.group, bundle=into.bundle), into.vnode)
            case Queue(group, bundle) if ask.wait:
                queued = replace(work, group=group, bundle=bundle, state=WorkState.QUEUED)
                books.works.put(queued)
            case _ if ask.wait:
                if isinstance(found, Hold):
                    self._why[work.id] = found
                self._hold(work, together=not ask.actor)
            case _:
                self._why.pop(work.id, None)
                return None
        return books.works[ask.id]

    def _may_share(self, ask: Ask) -> bool:
        """Whether an actor may go where others are: not before those who wait for that piece."""
        held = self._fabric.books.works.count(ask.cluster, WorkState.HELD)
        return ask.actor and not held

    def _check_actors(self, ask: Ask) -> None:
        """TooLarge for an actor without resources, if there are as many as there may be."""
        most = self._fabric.actors_without_resources
        whose = "`actors_without_resources` of the manager"
        entry = self._fabric.books.entries.get(ask.cluster)
        own = None if entry is None else entry.spec.get(ACTORS)
        if own is not None and (most is None or own < most):
            most, whose = own, f"`{ACTORS}` of its spec"
        if most is None or not ask.actor or ask.demand:
            return
        there = self._fabric.books.works.without_resources(ask.cluster)
        if there >= most:
            raise TooLarge(
                f"it has {there} actors without resources, and may have {most} ({whose}); ask for "
                "a part of a CPU"
            )

    def place_also(self, like: Ask, ids: Sequence[WorkId]) -> list[Work]:
        """Promise places to tasks like one that waits; to as many as can wait where it does.

        Nothing is made for them, and no room taken that others could have.
        """
        works, promised = self._fabric.books.works, list[Work]()
        if like.id not in works or works[like.id].state is WorkState.PLACED:
            return []
        for id in ids:
            if id not in works:
                work = self._work(replace(like, id=id))
                if queue := self._queue(like):
                    there = replace(work, group=queue.group, bundle=queue.bundle)
                    works.put(replace(there, state=WorkState.QUEUED))
                elif not self._join(work):
                    break
            promised.append(works[id])
        return promised

    def _work(self, ask: Ask) -> Work:
        return Work(
            id=ask.id,
            number=next(self._numbers),
            cluster=ask.cluster,
            demand=ask.demand,
            selector=ask.selector,
            lasting=ask.actor,
            function=ask.function,
            owner=ask.owner,
            group=GroupId(ask.id),
        )

    def placed(self, work: Work) -> Placed:
        """Where work runs, as its submitter is told."""
        known = self._fabric.books.groups.get(work.group)
        sizes = [piece.resources.to_ray() for piece in known.pieces] if known else []
        return Placed(work.group, work.bundle, tuple(sizes), str(work.state))

    def to_be_seen(self, ask: Ask) -> asyncio.Event | None:
        """What a task had better wait for: the end of the first of its kind, which has just begun.

        Only then is known whether it may wait in the queue of a piece, or had better be held. None
        if it need not wait, or in vain.
        """
        works, kind = self._fabric.books.works, _kind(ask)
        if ask.actor or not ask.wait or ask.inside or ask.id in works:
            return None
        began = self._begun.get(kind)
        if began is None or self._clock() > began + PROOF_S or self._paces.task_s(kind) is not None:
            return None
        if not isinstance(self._choose(ask), Hold):
            return None
        return self._first_ends.setdefault(kind, asyncio.Event())

    def _hold(self, work: Work, *, together: bool) -> None:
        """Have work wait for a placement group: of its own, or of a task like it."""
        if together and self._join(work):
            return
        self._fabric.books.works.put(work)
        if together:
            self._batches[_batch(work)] = (work.group, 1)

    def _join(self, work: Work) -> bool:
        """Have a task wait for the placement group of one like it; False if that has enough."""
        works, batch = self._fabric.books.works, _batch(work)
        waiting = sum(works.count(work.cluster, s) for s in (WorkState.HELD, WorkState.QUEUED))
        running = works.count(work.cluster, WorkState.PLACED)
        limit = batch_limit(waiting, running, self._paces.task_s(_kind(work)))
        group, size = self._batches.get(batch, (work.group, limit))
        if size >= limit or group not in works.busy:
            return False
        works.put(replace(work, group=group, bundle=0, state=WorkState.QUEUED))
        self._why.pop(work.id, None)
        self._batches[batch] = (group, size + 1)
        return True

    def begun(self, id: WorkId, actor: str) -> None:
        """Work turns out to be this actor."""
        works = self._fabric.books.works
        if id in works:
            works.put(replace(works[id], actor=actor))

    def done(self, ids: Iterable[WorkId], *, ran: bool = True) -> None:
        """Work has ended, or never came; its room goes to whoever waits."""
        works = self._fabric.books.works
        ended = [works[id] for id in ids if id in works]
        if ran:
            self._time(ended)
        for work in ended:
            self._forget(work.id)
        for group in dict.fromkeys(work.group for work in ended):
            self._promote(group)
        if ended:
            for cluster in works.holding():
                self._serve(cluster)

    def _time(self, ended: Iterable[Work]) -> None:
        """See from the tasks that have ended how long such tasks last."""
        books, counts = self._fabric.books, Counter[tuple[GroupId, Kind, Resources]]()
        for work in ended:
            if work.group in books.groups and not work.lasting:
                counts[work.group, _kind(work), work.demand] += 1
        for (group, kind, demand), count in counts.items():
            at_once = books.works.running(books.groups[group], demand)
            self._paces.ended(group, kind, count, at_once, self._clock())
            self._begun.pop(kind, None)
            if kind in self._first_ends:
                self._first_ends.pop(kind).set()

    def heard(self, owner: ProcessId) -> None:
        """A process is there, with work that has not ended."""
        self._heard[owner] = self._clock()

    def silent(self) -> set[ProcessId]:
        """The processes with work that have not been heard of for long."""
        now = self._clock()
        owners = {*self._fabric.books.works.owners} - {NOBODY}
        self._heard = {id: self._heard.get(id, now) for id in owners}
        return {id for id in owners if now > self._heard[id] + SILENCE_S}

    def actors(self) -> Mapping[str, WorkId]:
        """The actors among the work, by their ids."""
        return self._fabric.books.works.actors

    def look(
        self, in_use: Collection[GroupId], dead: Iterable[str], over: Collection[ProcessId]
    ) -> None:
        """Forget the work that Ray no longer knows: dead actors, and what dead processes left."""
        works, by_actor = self._fabric.books.works, self.actors()
        for actor in dead:
            if actor in by_actor:
                self._forget(by_actor[actor])
        for work in [each for owner in over for each in works.of_owner(owner)]:
            if work.group not in in_use:
                self._forget(work.id)
        self._paces.forget(but=self._fabric.books.groups)
        self.serve()

    def rebuild(self, wanted: Mapping[GroupId, Resources], in_use: Collection[GroupId]) -> None:
        """Let work run once more whose result was lost: Ray waits for the group that it had.

        Ray does so on its own (lineage), and nobody tells us of the end.
        """
        books, now = self._fabric.books, self._clock()
        unknown = {
            group for group in wanted if group not in books.groups and group not in books.works.busy
        }
        self._missed = {group: self._missed.get(group, now) for group in unknown}
        for group, since in self._missed.items():
            if now >= since + SURE_S:
                self._once_more(group, wanted[group])
        for work in books.works.of_owner(NOBODY):
            seen = self._rebuilt.setdefault(work.id, now)
            if work.group in wanted or work.group in in_use:
                self._rebuilt[work.id] = now
            elif now > seen + REBUILT_S:
                self._forget(work.id)
        self._rebuilt = {id: at for id, at in self._rebuilt.items() if id in books.works}

    def _once_more(self, group: GroupId, demand: Resources) -> None:
        books = self._fabric.books
        for id, entry in books.entries.items():
            if not (entry.waiting or entry.group) and was_made_for(id, group):
                work = Work(
                    id=WorkId(group),
                    number=next(self._numbers),
                    cluster=id,
                    demand=demand,
                    selector={},
                    owner=NOBODY,
                    group=group,
                )
                self._hold(work, together=False)
                self._serve(id)
                return

    def end(self, cluster: ClusterId) -> None:
        """A virtual cluster is about to end, with all its work."""
        for work in self._fabric.books.works.of(cluster):
            self._forget(work.id)
        self._paces.end([kind for kind in self._paces.kinds if kind[0] == cluster])
        for kind in [each for each in {**self._begun, **self._first_ends} if each[0] == cluster]:
            self._begun.pop(kind, None)
            if kind in self._first_ends:
                self._first_ends.pop(kind).set()
        for batch in [each for each in self._batches if each[0] == cluster]:
            del self._batches[batch]

    def lost(self, vnodes: Collection[VNodeId]) -> None:
        """These vnodes died: what ran there and is started again runs where room is found.

        It looks for the same placement group, so that is made anew, unless it is still there.
        """
        books = self._fabric.books
        again: set[GroupId] = set()
        for work in list(books.works):
            if work.vnode not in vnodes and not (
                work.state is WorkState.QUEUED
                and work.group in books.groups
                and books.groups[work.group].vnodes & {*vnodes}
            ):
                continue
            known = books.groups.get(work.group)
            stays = known is not None and (known.movable or bool(known.vnodes - {*vnodes}))
            state = WorkState.QUEUED if stays or work.group in again else WorkState.HELD
            if not stays:
                again.add(work.group)
            books.works.put(replace(work, state=state, vnode=None))

    def serve(self) -> None:
        """Give those that wait what has become free, first come, first served."""
        books = self._fabric.books
        for group in tuple(books.works.queued):
            self._promote(group)
        for cluster in books.works.holding():
            self._serve(cluster)

    def _serve(self, cluster: ClusterId) -> None:
        """Have placement groups made for what is held in a virtual cluster."""
        books = self._fabric.books
        refused: set[Hashable] = set()
        with closing(books.works.held(cluster)) as held:
            for work in held:
                needed = self._needed(work)
                kind = alike(needed, work.selector)
                if kind in refused:
                    continue
                found = apart(books.ledger, cluster, needed, work.selector)
                if isinstance(found, Hold):
                    self._why[work.id] = found
                if isinstance(found, Hold) or not self._set_apart(work, found):
                    refused.add(kind)
                if len(refused) > TRIES:
                    return

    def demand(self) -> tuple[Resources, ...]:
        """What is held and only another machine could give."""
        works = self._fabric.books.works
        return tuple(
            works[id].demand for id, why in self._why.items() if why.physical and id in works
        )

    def _choose(self, ask: Ask, *, lasting: bool = False) -> Into | Apart | Queue | Hold | Never:
        books = self._fabric.books
        return choose(
            books.ledger,
            books.groups,
            books.works.load,
            self._waits(ask),
            ask.cluster,
            ask.demand,
            ask.selector,
            lasting=lasting,
            soon_s=self._soon_s(ask),
            actors=books.works.lasting,
            machines_come=self._fabric.machines_come,
        )

    def _queue(self, ask: Ask) -> Queue | None:
        """Where a task waits, since it is known that there is no room."""
        return shortest_queue(
            self._fabric.books.ledger,
            self._fabric.books.groups,
            self._waits(ask),
            self._fabric.books.works.lasting,
            ask.cluster,
            ask.demand,
            ask.selector,
            self._soon_s(ask),
        )

    def _waits(self, ask: Ask) -> Callable[[Group], float]:
        """How long a task waits in the queue of a group."""
        works, kind, now = self._fabric.books.works, _kind(ask), self._clock()

        def wait_s(group: Group) -> float:
            at_once = slots(group, ask.demand, works.lasting)
            return self._paces.wait_s(group.id, kind, works.queued.get(group.id, 0), at_once, now)

        return wait_s

    def _soon_s(self, ask: Ask) -> float:
        """How long a task may wait for a flexible piece that others use."""
        return SOON_S if self._may_queue(ask) else 0.0

    def _may_queue(self, ask: Ask) -> bool:
        """Whether a task may wait for a flexible piece that others use.

        Its like are known to be short, and nobody is held who could run if the pieces were idle:
        they were there first, and whoever comes later must not keep the pieces busy.
        """
        books, cluster = self._fabric.books, ask.cluster
        if ask.actor or self._paces.task_s(_kind(ask)) is None:
            return False
        if not books.works.count(cluster, WorkState.HELD):
            return True
        flexible = [v for v in books.ledger.of(cluster) if v.kind is VNodeKind.FLEXIBLE]
        rooms = [books.ledger.own(vnode.id) for vnode in flexible]
        with closing(books.works.held(cluster)) as held:
            first = itertools.islice(held, TRIES)
            return not any(work.demand.fits(room) for work in first for room in rooms)

    def _set_apart(self, work: Work, found: Apart) -> bool:
        """Have a placement group made for work; False if the pieces cannot be cut so."""
        books = self._fabric.books
        needed = self._needed(work) or SOMETHING
        twin = books.ledger.copy()
        borrow(twin, found.growth, 0.0)
        steps = found.growth.steps
        touched = {found.vnode, *(s.vnode for s in steps), *(VNodeId(s.parent) for s in steps)}
        if not needed.fits(twin.own(found.vnode)):
            return False  # it has no demands, and its vnode nothing to spare
        cut = self._fabric.cut(twin, touched & twin.vnodes.keys(), {found.vnode: needed})
        if isinstance(cut, Stuck):
            self._why[work.id] = Hold(cut.reason, physical=False)
            return False
        borrow(books.ledger, found.growth, self._fabric.due())
        known = books.ledger.vnodes[found.vnode]
        piece = Piece(vnode=known.id, resources=needed, machine=known.machine)
        group = Group(
            id=work.group, cluster=work.cluster, policy=SchedulingPolicy.PACK, pieces=(piece,)
        )
        self._fabric.order(Recut(cut.remove, (group, *cut.make)))
        self._start(replace(work, bundle=0), known.id)
        return True

    def _needed(self, work: Work) -> Resources:
        """What a placement group has to have for the largest of all that goes there."""
        return self._fabric.books.works.needed(work.group) | work.demand

    def _start(self, work: Work, vnode: VNodeId) -> None:
        books = self._fabric.books
        self._paces.began(work.group, self._clock())
        if not work.lasting and self._paces.task_s(_kind(work)) is None:
            self._begun.setdefault(_kind(work), self._clock())
        books.ledger.start(work.id, Use(vnode=vnode, resources=work.demand))
        books.works.put(replace(work, vnode=vnode, state=WorkState.PLACED))
        self._why.pop(work.id, None)

    def _promote(self, group: GroupId) -> None:
        """Count work that Ray will have started, since its placement group has room for it."""
        books = self._fabric.books
        known = books.groups.get(group)
        found = known is not None
        while known is not None and found:
            found = False
            for work in books.works.queues(group):
                for bundle, piece in enumerate(known.pieces):
                    if piece.vnode not in books.ledger.vnodes or work.bundle not in (ANY, bundle):
                        continue
                    held = books.works.load.get((group, bundle), Resources())
                    if (held + work.demand).fits(piece.resources):
                        self._start(replace(work, bundle=bundle), VNodeId(str(piece.vnode)))
                        found = True
                        break

    def _forget(self, id: WorkId) -> None:
        books = self._fabric.books
        self._why.pop(id, None)
        work = books.works.drop(id)
        if work is None:
            return
        if id in books.ledger.uses:
            books.ledger.stop(id)
        behind = books.works.queues(work.group)
        if behind and work.state is WorkState.HELD:
            books.works.put(replace(behind[0], state=WorkState.HELD))


def _kind(work: Work | Ask) -> Kind:
    return work.cluster, work.function, alike(work.demand, work.selector)


def _batch(work: Work) -> tuple[ClusterId, Hashable]:
    """The same for tasks that may share a placement group."""
    return work.cluster, alike(work.demand, work.selector)
