"""Scheduler: where work would run now, by the cluster state and by how long such tasks last."""

from __future__ import annotations

import itertools
from contextlib import closing

from ...core.cluster_state import ClusterState
from ...core.records import VNodeKind
from ...core.routing.eligibility import Never
from ...core.routing.pace import SOON_S
from ...core.routing.scheduling import Apart, AwaitGroup, Into, Queue, choose, shortest_queue
from ...core.routing.work import WorkState
from ..settings import KeeperSettings
from .messages import Ask
from .task_times import TaskTimes, kind_of

TRIES = 16
"""How many different demands that cannot be met are looked at in one virtual cluster at a time."""


class Scheduler:
    """What the core is asked with."""

    def __init__(self, state: ClusterState, times: TaskTimes, settings: KeeperSettings) -> None:
        self._state = state
        self._times = times
        self._settings = settings

    def choose(
        self, ask: Ask, *, lasting: bool = False
    ) -> Into | Apart | Queue | AwaitGroup | Never:
        """Where work runs; `lasting`: an actor, which had better have a piece for itself."""
        state = self._state
        return choose(
            state.ledger,
            state.groups,
            state.works.load,
            self._times.waits(ask),
            ask.cluster,
            ask.demand,
            ask.selector,
            lasting=lasting,
            soon_s=self._soon_s(ask),
            actors=state.works.lasting,
            machines_come=self._settings.machines_come,
        )

    def queue(self, ask: Ask) -> Queue | None:
        """Where a task waits, since it is known that there is no room."""
        return shortest_queue(
            self._state.ledger,
            self._state.groups,
            self._times.waits(ask),
            self._state.works.lasting,
            ask.cluster,
            ask.demand,
            ask.selector,
            self._soon_s(ask),
        )

    def _soon_s(self, ask: Ask) -> float:
        """How long a task may wait for a flexible piece that others use.

        Not at all, unless its like are known to be short and nobody is held who could run if the
        pieces were idle: they were there first, and those who come later must not keep them busy.
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
