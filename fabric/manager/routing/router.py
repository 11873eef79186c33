"""Router: sends the work inside virtual clusters to placement groups, and keeps account of it.

A submitter chooses the id of its work and asks where it runs. The answer is a placement group. If
that does not exist yet, its id is that of the work, which waits for it in Ray (decision 16).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import (
    Callable,
    Collection,
    Container,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import closing
from dataclasses import replace
from typing import Protocol

from ...core.cluster_state import ClusterState
from ...core.ledger import Ledger
from ...core.places.borrowing import borrow
from ...core.places.groups import (
    CarriedBundle,
    GroupId,
    PlacementGroupRecord,
    Rebundling,
    Stuck,
    was_made_for,
)
from ...core.records import DEFAULT, ClusterId, ProcessId, SchedulingPolicy, Use, VNodeId, WorkId
from ...core.resources import Resources
from ...core.routing.eligibility import Never
from ...core.routing.scheduling import ANY, SOMETHING, Apart, AwaitGroup, Into, Queue, apart
from ...core.routing.work import NOBODY, Work, WorkState, alike
from ...errors import NoSuchCluster, Preempted, TooLarge
from ...spec import ACTORS
from ..settings import KeeperSettings
from .messages import Ask, Placed
from .scheduler import TRIES, Batches, Scheduler
from .task_times import TaskTimes, kind_of

SILENCE_S = 20.0
"""How long a process may be silent before the manager asks Ray whether it is alive."""

SURE_S = 1.0
"""How long Ray must wait for a group before it is made again, since Ray's reports lag."""
REBUILT_S = 5.0
"""When work that Ray repeats counts as over, if nothing runs in its placement group."""


def check_placed(state: ClusterState, cluster: ClusterId) -> None:
    """Refuse a virtual cluster that has no places. Preempted if others got them; NoSuchCluster."""
    placed = state.ledger.clusters.keys() - {DEFAULT}
    if cluster in placed:
        return
    entry = state.entries.get(cluster)
    if entry is not None and entry.stopped is not None:
        notice = entry.stopped
        raise Preempted(cluster, notice.claimant, notice.rule, notice.reason)
    raise NoSuchCluster(cluster, sorted(placed))


class Bundles(Protocol):
    """What the router needs of the bundler."""

    state: ClusterState
    settings: KeeperSettings

    def cut(
        self, ledger: Ledger, vnodes: Iterable[VNodeId], given: Mapping[VNodeId, Resources], /
    ) -> Rebundling | Stuck: ...
    def order(self, cut: Rebundling, /) -> None: ...
    def due(self) -> float: ...


class Router:
    """The work in all virtual clusters, and where it runs."""

    def __init__(self, bundles: Bundles, clock: Callable[[], float]) -> None:
        self._bundles = bundles
        self._state = bundles.state
        self._clock = clock
        self._heard: dict[ProcessId, float] = {}
        self._why: dict[WorkId, AwaitGroup] = {}
        self._since: dict[WorkId, float] = {}
        """Since when work is known to wait for its placement group."""
        self._times = TaskTimes(self._state, clock)
        self._scheduler = Scheduler(self._state, self._times, bundles.settings)
        self._batches = Batches(self._state.works, self._times)
        self._reconstruction = Reconstruction(self._state, clock)
        self._numbers = itertools.count(
            max((work.number for work in self._state.works), default=0) + 1
        )

    def place(self, ask: Ask) -> Work | None:
        """Say where work runs; None if it may not wait and there is no room.

        A repeated request gets the same answer. NoSuchCluster, Preempted; TooLarge for what can
        never run.
        """
        state = self._state
        self._heard[ask.owner] = self._clock()
        if ask.id in state.works:
            return state.works[ask.id]
        check_placed(state, ask.cluster)
        self._check_actors(ask)
        found = Queue(*ask.inside) if ask.inside else self._scheduler.choose(ask, lasting=ask.actor)
        if isinstance(found, Never):
            raise TooLarge(found.reason)
        work = self._work(ask)
        match found:
            case Into(group, bundle, vnode):
                self._start(replace(work, group=group, bundle=bundle), vnode)
            case Apart() if self._set_apart(work, found):
                pass
            case Apart() if (
                ask.actor
                and not state.works.count(ask.cluster, WorkState.HELD)  # held work waits for it
                and isinstance(into := self._scheduler.choose(ask), Into)
            ):
                self._start(replace(work, group=into.group, bundle=into.bundle), into.vnode)
            case Queue(group, bundle) if ask.wait:
                queued = replace(work, group=group, bundle=bundle, state=WorkState.QUEUED)
                state.works.put(queued)
            case _ if ask.wait:
                if isinstance(found, AwaitGroup):
                    self._await(work.id, found)
                self._hold(work, together=not ask.actor)
            case _:
                self._no_longer_awaits(work.id)
                return None
        return state.works[ask.id]

    def _check_actors(self, ask: Ask) -> None:
        most = self._bundles.settings.actors_without_resources
        whose = "`actors_without_resources` of the manager"
        entry = self._state.entries.get(ask.cluster)
        own = None if entry is None else entry.spec.get(ACTORS)
        if own is not None and (most is None or own < most):
            most, whose = own, f"`{ACTORS}` of its spec"
        if most is None or not ask.actor or ask.demand:
            return
        there = self._state.works.without_resources(ask.cluster)
        if there >= most:
            raise TooLarge(
                f"it has {there} actors without resources, and may have {most} ({whose}); ask for "
                "a part of a CPU"
            )

    def place_also(self, like: Ask, ids: Sequence[WorkId]) -> list[Work]:
        """Promise places to tasks like a waiting one, to as many as can wait in its queue."""
        works, promised = self._state.works, list[Work]()
        if like.id not in works or works[like.id].state is WorkState.PLACED:
            return []
        for id in ids:
            if id not in works:
                work = self._work(replace(like, id=id))
                if queue := self._scheduler.queue(like):
                    there = replace(work, group=queue.group, bundle=queue.bundle)
                    works.put(replace(there, state=WorkState.QUEUED))
                elif not self._batches.join(work):
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
        """The answer to the submitter of work."""
        known = self._state.groups.get(work.group)
        sizes = [piece.resources.to_ray() for piece in known.pieces] if known else []
        return Placed(work.group, work.bundle, tuple(sizes), str(work.state))

    def to_be_seen(self, ask: Ask) -> asyncio.Event | None:
        """The end of the first task of this kind, if that decides whether this one is held."""
        if ask.actor or not ask.wait or ask.inside or ask.id in self._state.works:
            return None
        first_end = self._times.first_end(kind_of(ask))
        if first_end is None or not isinstance(self._scheduler.choose(ask), AwaitGroup):
            return None
        return first_end

    def _hold(self, work: Work, *, together: bool) -> None:
        """Let work wait for its own placement group, or for the group of a task like it."""
        if together and self._batches.join(work):
            self._no_longer_awaits(work.id)
            return
        self._state.works.put(work)
        if together:
            self._batches.begin(work)

    def begun(self, id: WorkId, actor: str) -> None:
        """Record which actor the work is."""
        works = self._state.works
        if id in works:
            works.put(replace(works[id], actor=actor))

    def done(self, ids: Iterable[WorkId], *, ran: bool = True) -> None:
        """Record that work has ended, or never came; its room goes to waiting work."""
        works = self._state.works
        ended = [works[id] for id in ids if id in works]
        if ran:
            self._times.ended(ended)
        for work in ended:
            self._forget(work.id)
        for group in dict.fromkeys(work.group for work in ended):
            self._promote(group)
        if ended:
            for cluster in works.holding():
                self._serve(cluster)

    def heard(self, owner: ProcessId) -> None:
        """Record that a process is alive, with work that has not ended."""
        self._heard[owner] = self._clock()

    def silent(self) -> set[ProcessId]:
        """The processes with work that have not reported for `SILENCE_S`."""
        now = self._clock()
        owners = {*self._state.works.owners} - {NOBODY}
        self._heard = {id: self._heard.get(id, now) for id in owners}
        return {id for id in owners if now > self._heard[id] + SILENCE_S}

    def look(
        self, in_use: Collection[GroupId], dead: Iterable[str], over: Collection[ProcessId]
    ) -> None:
        """Forget the work that Ray no longer knows: dead actors, and work of dead processes."""
        works, by_actor = self._state.works, self._state.works.actors
        for actor in dead:
            if actor in by_actor:
                self._forget(by_actor[actor])
        for work in [each for owner in over for each in works.of_owner(owner)]:
            if work.group not in in_use:
                self._forget(work.id)
        self._times.forget_groups()
        self.serve()

    def rebuild(self, wanted: Mapping[GroupId, Resources], in_use: Collection[GroupId]) -> None:
        """Have lost results computed again: Ray waits for the group that their work had."""
        for group, cluster in self._reconstruction.missed(wanted):
            work = Work(
                id=WorkId(group),
                number=next(self._numbers),
                cluster=cluster,
                demand=wanted[group],
                owner=NOBODY,
                group=group,
            )
            self._hold(work, together=False)
            self._serve(cluster)
        for id in self._reconstruction.over(wanted, in_use):
            self._forget(id)

    def end(self, cluster: ClusterId) -> None:
        """Forget all work of a virtual cluster that is about to end."""
        for work in self._state.works.of(cluster):
            self._forget(work.id)
        self._times.end(cluster)
        self._batches.end(cluster)

    def removed(self, groups: Iterable[GroupId]) -> None:
        """Forget the work in placement groups that are removed: Ray ends it."""
        for group in groups:
            for work in self._state.works.on(group):
                self._forget(work.id)

    def lost(self, vnodes: Collection[VNodeId]) -> None:
        """Update the work of dead vnodes: Ray restarts it in its old group, which is made again."""
        state = self._state
        again: set[GroupId] = set()
        for work in list(state.works):
            if work.vnode not in vnodes and not (
                work.state is WorkState.QUEUED
                and work.group in state.groups
                and state.groups[work.group].vnodes & {*vnodes}
            ):
                continue
            known = state.groups.get(work.group)
            stays = known is not None and (known.movable or bool(known.vnodes - {*vnodes}))
            then = WorkState.QUEUED if stays or work.group in again else WorkState.HELD
            if not stays:
                again.add(work.group)
            state.works.put(replace(work, state=then, vnode=None))

    def serve(self) -> None:
        """Give free resources to waiting work, first come, first served."""
        state = self._state
        for group in tuple(state.works.queued):
            self._promote(group)
        for cluster in state.works.holding():
            self._serve(cluster)

    def _serve(self, cluster: ClusterId) -> None:
        """Have placement groups made for the held work of a virtual cluster."""
        state = self._state
        refused: set[Hashable] = set()
        with closing(state.works.held(cluster)) as held:
            for work in held:
                needed = self._needed(work)
                kind = alike(needed, work.selector)
                if kind in refused:
                    continue
                closed = state.closing(cluster)
                found = apart(state.lendable, cluster, needed, work.selector, closed)
                if isinstance(found, AwaitGroup):
                    self._await(work.id, found)
                if isinstance(found, AwaitGroup) or not self._set_apart(work, found):
                    refused.add(kind)
                if len(refused) > TRIES:
                    return

    def awaits(self) -> Iterator[tuple[Work, AwaitGroup, float]]:
        """The work that waits for room, why, and since when."""
        works = self._state.works
        known = ((id, why) for id, why in self._why.items() if id in works)
        return ((works[id], why, self._since[id]) for id, why in known)

    def _await(self, id: WorkId, why: AwaitGroup) -> None:
        self._why[id] = why
        self._since.setdefault(id, self._clock())

    def _no_longer_awaits(self, id: WorkId) -> None:
        self._why.pop(id, None)
        self._since.pop(id, None)

    def _set_apart(self, work: Work, found: Apart) -> bool:
        """Have a placement group made for work; False if work prevents the rebundling."""
        state = self._state
        needed = self._needed(work) or SOMETHING
        twin = state.ledger.copy()
        borrow(twin, found.growth, 0.0)
        steps = found.growth.steps
        touched = {found.vnode, *(s.vnode for s in steps), *(VNodeId(s.parent) for s in steps)}
        if not needed.fits(twin.own(found.vnode)):
            return False  # the work has no demands, and the vnode nothing to spare
        cut = self._bundles.cut(twin, touched & twin.vnodes.keys(), {found.vnode: needed})
        if isinstance(cut, Stuck):
            self._await(work.id, AwaitGroup(cut.reason, physical=False))
            return False
        borrow(state.ledger, found.growth, self._bundles.due())
        known = state.ledger.vnodes[found.vnode]
        piece = CarriedBundle(vnode=known.id, resources=needed, machine=known.machine)
        group = PlacementGroupRecord(
            id=work.group, cluster=work.cluster, policy=SchedulingPolicy.PACK, pieces=(piece,)
        )
        self._bundles.order(Rebundling(cut.remove, (group, *cut.make)))
        self._start(replace(work, bundle=0), known.id)
        return True

    def _needed(self, work: Work) -> Resources:
        """The largest amount of each resource that the work for a placement group demands."""
        return self._state.works.needed(work.group) | work.demand

    def _start(self, work: Work, vnode: VNodeId) -> None:
        state = self._state
        self._times.began(work)
        state.ledger.start(work.id, Use(vnode=vnode, resources=work.demand))
        state.works.put(replace(work, vnode=vnode, state=WorkState.PLACED))
        self._no_longer_awaits(work.id)

    def _promote(self, group: GroupId) -> None:
        """Mark queued work as placed that Ray can start, since its group has room for it."""
        state = self._state
        known = state.groups.get(group)
        found = known is not None
        while known is not None and found:
            found = False
            for work in state.works.queues(group):
                for bundle, piece in enumerate(known.pieces):
                    if piece.vnode not in state.ledger.vnodes or work.bundle not in (ANY, bundle):
                        continue
                    held = state.works.load.get((group, bundle), Resources())
                    if (held + work.demand).fits(piece.resources):
                        self._start(replace(work, bundle=bundle), VNodeId(str(piece.vnode)))
                        found = True
                        break

    def _forget(self, id: WorkId) -> None:
        state = self._state
        self._no_longer_awaits(id)
        work = state.works.drop(id)
        if work is None:
            return
        if id in state.ledger.uses:
            state.ledger.stop(id)
        behind = state.works.queues(work.group)
        if behind and work.state is WorkState.HELD:
            state.works.put(replace(behind[0], state=WorkState.HELD))


class Reconstruction:
    """Work that Ray repeats by itself, since its result was lost; no process reports its end."""

    def __init__(self, state: ClusterState, clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock
        self._missed: dict[GroupId, float] = {}
        """Since when each placement group has been missing."""
        self._seen: dict[WorkId, float] = {}
        """When Ray last ran the work again, or waited to."""

    def missed(self, wanted: Iterable[GroupId]) -> list[tuple[GroupId, ClusterId]]:
        """The placement groups to make again, each with its virtual cluster."""
        state, now = self._state, self._clock()
        unknown = {
            group for group in wanted if group not in state.groups and group not in state.works.busy
        }
        self._missed = {group: self._missed.get(group, now) for group in unknown}
        sure = [group for group, since in self._missed.items() if now >= since + SURE_S]
        placed = state.entries.items() if sure else ()
        owners = [id for id, e in placed if not (e.waiting or e.group)]
        of = {group: [id for id in owners if was_made_for(id, group)] for group in sure}
        return [(group, ids[0]) for group, ids in of.items() if ids]

    def over(self, wanted: Container[GroupId], in_use: Container[GroupId]) -> list[WorkId]:
        """The work that Ray has neither waited for nor run for `REBUILT_S`."""
        now, works = self._clock(), self._state.works.of_owner(NOBODY)
        self._seen = {
            work.id: now
            if work.group in wanted or work.group in in_use
            else self._seen.get(work.id, now)
            for work in works
        }
        return [id for id, at in self._seen.items() if now > at + REBUILT_S]
