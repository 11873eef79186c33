"""Decides where work would run now, and which similar tasks wait together for one group."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from contextlib import closing
from dataclasses import replace

from ...core.cluster_state import ClusterState
from ...core.places.groups import GroupId
from ...core.records import ClusterId, VNodeKind
from ...core.routing.eligibility import Never
from ...core.routing.pace import SOON_S, batch_limit
from ...core.routing.scheduling import Apart, AwaitGroup, Into, Queue, choose, shortest_queue
from ...core.routing.work import Work, WorkState, alike
from ...core.routing.work_table import WorkTable
from ..settings import KeeperSettings
from .messages import Ask
from .task_times import TaskTimes, kind_of

TRIES = 16
"""How many different unmet demands are tried at a time in one virtual cluster."""


class Scheduler:
    """Calls the core with the current state."""

    def __init__(self, state: ClusterState, times: TaskTimes, settings: KeeperSettings) -> None:
        self._state = state
        self._times = times
        self._settings = settings

    def choose(
        self, ask: Ask, *, lasting: bool = False
    ) -> Into | Apart | Queue | AwaitGroup | Never:
        """Choose where work runs; `lasting` work, an actor, should get a bundle of its own."""
        state = self._state
        return choose(
            state.lendable,
            state.groups,
            state.works.load,
            self._times.waits(ask),
            ask.cluster,
            ask.demand,
            ask.selector,
            lasting=lasting,
            soon_s=self._soon_s(ask),
            actors=state.works.lasting,
            closed=state.closing(ask.cluster),
            machines_come=self._settings.machines_come,
        )

    def queue(self, ask: Ask) -> Queue | None:
        """Choose the queue in which a task waits that has no room."""
        return shortest_queue(
            self._state.ledger,
            self._state.groups,
            self._times.waits(ask),
            self._state.works.lasting,
            ask.cluster,
            ask.demand,
            ask.selector,
            self._soon_s(ask),
            self._state.closing(ask.cluster),
        )

    def _soon_s(self, ask: Ask) -> float:
        """How long a task may wait for a flexible bundle that others use.

        0, unless its kind is known to be short and no held work could run in these bundles if they
        were idle: the held work came first (decision 31).
        """
        state, cluster = self._state, ask.cluster
        if ask.actor or self._times.task_s(kind_of(ask)) is None:
            return 0.0
        if not state.works.count(cluster, WorkState.HELD):
            return SOON_S
        flexible = [v for v in state.ledger.of(cluster) if v.kind is VNodeKind.FLEXIBLE]
        rooms = [state.ledger.own(vnode.id) for vnode in flexible]
        with closing(state.works.held(cluster)) as held:
            first = itertools.islice(held, TRIES)
            served = any(work.demand.fits(room) for work in first for room in rooms)
        return 0.0 if served else SOON_S


class Batches:
    """The placement group that each kind of task was last sent to, and its number of tasks."""

    def __init__(self, works: WorkTable, times: TaskTimes) -> None:
        self._works = works
        self._times = times
        self._last: dict[tuple[ClusterId, Hashable], tuple[GroupId, int]] = {}

    def begin(self, work: Work) -> None:
        """Record that a task waits for its own placement group, which others may share."""
        self._last[_batch(work)] = (work.group, 1)

    def join(self, work: Work) -> bool:
        """Have a task wait for the placement group of one like it; False if that has enough."""
        works, batch = self._works, _batch(work)
        waiting = sum(works.count(work.cluster, s) for s in (WorkState.HELD, WorkState.QUEUED))
        running = works.count(work.cluster, WorkState.PLACED)
        limit = batch_limit(waiting, running, self._times.task_s(kind_of(work)))
        group, size = self._last.get(batch, (work.group, limit))
        if size >= limit or group not in works.busy:
            return False
        works.put(replace(work, group=group, bundle=0, state=WorkState.QUEUED))
        self._last[batch] = (group, size + 1)
        return True

    def end(self, cluster: ClusterId) -> None:
        """Forget a virtual cluster that is about to end."""
        for batch in [each for each in self._last if each[0] == cluster]:
            del self._last[batch]


def _batch(work: Work) -> tuple[ClusterId, Hashable]:
    """A key that is equal for tasks that may share a placement group."""
    return work.cluster, alike(work.demand, work.selector)
