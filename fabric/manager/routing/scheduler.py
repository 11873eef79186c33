"""Scheduler: where work would run now, by the books and by how long such tasks last."""

from __future__ import annotations

import itertools
from contextlib import closing

from ...core.books import Books
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

    def __init__(self, books: Books, times: TaskTimes, settings: KeeperSettings) -> None:
        self._books = books
        self._times = times
        self._settings = settings

    def choose(
        self, ask: Ask, *, lasting: bool = False
    ) -> Into | Apart | Queue | AwaitGroup | Never:
        """Where work runs; `lasting`: an actor, which had better have a piece for itself."""
        books = self._books
        return choose(
            books.ledger,
            books.groups,
            books.works.load,
            self._times.waits(ask),
            ask.cluster,
            ask.demand,
            ask.selector,
            lasting=lasting,
            soon_s=self._soon_s(ask),
            actors=books.works.lasting,
            machines_come=self._settings.machines_come,
        )

    def queue(self, ask: Ask) -> Queue | None:
        """Where a task waits, since it is known that there is no room."""
        return shortest_queue(
            self._books.ledger,
            self._books.groups,
            self._times.waits(ask),
            self._books.works.lasting,
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
        books, cluster = self._books, ask.cluster
        if ask.actor or self._times.task_s(kind_of(ask)) is None:
            return 0.0
        if not books.works.count(cluster, WorkState.HELD):
            return SOON_S
        flexible = [v for v in books.ledger.of(cluster) if v.kind is VNodeKind.FLEXIBLE]
        rooms = [books.ledger.own(vnode.id) for vnode in flexible]
        with closing(books.works.held(cluster)) as held:
            first = itertools.islice(held, TRIES)
            served = any(work.demand.fits(room) for work in first for room in rooms)
        return 0.0 if served else SOON_S
