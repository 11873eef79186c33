"""RequestChecks: what a virtual cluster may be called, and whether its queue could serve it."""

from __future__ import annotations

from dataclasses import replace

from ...core.cluster_state import ClusterState
from ...core.ledger import Ledger
from ...core.places.nomination import DoesNotFit, never
from ...core.places.request import Request
from ...core.records import DEFAULT, ROOT, BundleGroup, Machine, MachineId
from ...core.resources import Resources
from ...errors import NameTaken, NeverFits
from ..routing.router import check_placed
from ..scheduling.queue_book import QueueBook
from ..settings import KeeperSettings

MOST_KNOWN = 1000


class RequestChecks:
    """The checks of a request before it waits; at the root they follow the file of queues."""

    def __init__(self, state: ClusterState, book: QueueBook, settings: KeeperSettings) -> None:
        self._state = state
        self._book = book
        self._settings = settings
        self._known: dict[tuple[tuple[BundleGroup, ...], Resources], DoesNotFit | None] = {}
        """What is known of requests of a shape, on the machines of the last one."""
        self._asked_on: dict[MachineId, Machine] = {}

    def check(self, request: Request, user: str | None) -> None:
        """Refuse what is not admitted, now or ever; without a user any user may ask.

        NameTaken, NoSuchCluster, QueueRefused, NeverFits.
        """
        if impossible := self.never(self.accepted(request, user)):
            raise NeverFits(request.id, impossible.reason, impossible.most)

    def accepted(self, request: Request, user: str | None) -> Request:
        """The request with the pool that it runs in.

        NameTaken, NoSuchCluster, Preempted for its parent, QueueRefused.
        """
        if request.id in (ROOT, DEFAULT):
            raise NameTaken(request.id)
        if request.parent != ROOT:
            check_placed(self._state, request.parent)
            return request
        self._book.check(request, user)
        machines = list(self._state.ledger.machines.values())
        return replace(request, pool=request.pool or self._book.pool_of(request, machines))

    def never(self, request: Request) -> DoesNotFit | None:
        """Why a request cannot fit even if nothing else is there; None if that is not proven."""
        if request.parent != ROOT:
            return never(self._state.ledger, request)
        if self._settings.machines_come:
            return None
        there = self._book.in_pool(request.pool, self._state.ledger.machines.values())
        machines = {each.id: each for each in there}
        if machines != self._asked_on:
            more = self._asked_on.items() <= machines.items()  # what fitted before still does
            known = self._known.items() if more else ()
            self._known = {shape: why for shape, why in known if why is None}
            self._asked_on = machines
        shape = request.groups, request.least
        if shape not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[shape] = never(Ledger(there), request)
        return self._known[shape]
