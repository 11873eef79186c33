"""FederationMediator: knows the sites, reserves a gang, assigns clients, carries orders."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from .core.assignment import Assignment, SiteCapacity, assign
from .core.reservation import Answer, Ask, Outcome, Promise, Refusal, Verb, reserve
from .core.traffic import Direction, Flow, TrafficLedger
from .errors import MediatorError, ReservationRefused, SiteUnreachable
from .site import GangRequest, Site
from .workload import Notify, Payload

ANSWER_S = 10.0
"""How much longer than the reservation itself a site may take to answer."""
RELEASE_S = 30.0
"""How long `close` waits for the sites; what they still hold then ends with its lease."""


class FederationMediator:
    """Spans the sites of one federation; owns what it reserved on them until `close`."""

    def __init__(self, sites: Iterable[Site], *, assignment: str = "capacity") -> None:
        self._sites = {site.name: site for site in sites}
        self._strategy = assignment
        self._promises: Mapping[str, Promise] = {}
        self._assignment: Assignment | None = None
        self._traffic = TrafficLedger()
        self._traffic_lock = threading.Lock()

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that hold a part of the gang; before there is one, all."""
        return tuple(self._promises or self._sites)

    @property
    def promises(self) -> Mapping[str, Promise]:
        """What each site holds."""
        return self._promises

    def reserve(
        self,
        request: GangRequest,
        *,
        min_sites: int | None = None,
        required: Collection[str] = (),
    ) -> Mapping[str, Promise]:
        """Reserve the gang on every site or, once `min_sites` have promised, on those.

        Raises ReservationRefused, with nothing left reserved anywhere.
        """
        enough = len(self._sites) if min_sites is None else min_sites
        conversation = reserve(tuple(self._sites), min_sites=enough, required=required)
        try:
            asks = next(conversation)
            while True:
                asks = conversation.send(self._ask(asks, request))
        except StopIteration as end:
            outcome: Outcome = end.value
        except BaseException:
            self.close()
            raise
        if not outcome.granted:
            raise ReservationRefused(outcome.refusals)
        self._promises = outcome.promises
        return self._promises

    def _ask(self, asks: Sequence[Ask], request: GangRequest) -> Mapping[str, Answer]:
        """Ask several sites at once; a site that fails to answer refuses by that."""
        asked = {ask.site: self._put(ask, request) for ask in asks}
        deadline = time.monotonic() + request.timeout_s + ANSWER_S
        answers: dict[str, Answer] = {}
        for site, future in asked.items():
            try:
                answers[site] = future.result(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                answers[site] = Refusal(site, "no answer in time")
            except MediatorError as error:
                answers[site] = Refusal(site, str(error))
        return answers

    def _put(self, ask: Ask, request: GangRequest) -> Future[Any]:
        site = self._sites[ask.site]
        match ask.verb:
            case Verb.PREPARE:
                return site.prepare(request)
            case Verb.COMMIT:
                return site.commit()
            case Verb.RELEASE:
                return site.release()

    def assign(self, population: int) -> Assignment:
        """Give every client of the population its site."""
        capacities = [SiteCapacity(p.site, p.vnodes) for p in self._promises.values()]
        self._assignment = assign(self._strategy, population, capacities)
        return self._assignment

    @property
    def assignment(self) -> Assignment:
        """Every client's site; `assign` comes first."""
        if self._assignment is None:
            raise RuntimeError("clients are assigned once the gang is reserved")
        return self._assignment

    def start(self, workload: str, specs: Mapping[str, Payload], notify: Notify) -> None:
        """Check the workload at every site, then start it at every site."""
        checked = [self._sites[site].check(workload, spec) for site, spec in specs.items()]
        for each in checked:
            each.result()
        for each in [self._sites[site].start(notify) for site in specs]:
            each.result()

    def deliver(
        self,
        site: str,
        order: Payload,
        *,
        round_number: int = 0,
        purpose: str,
        key: str | None = None,
    ) -> Future[Payload]:
        """Send an order to a site; the future of its answer. Both are booked as traffic.

        Orders with the same `key` are one order, whoever sends it again; without one it is new.
        """
        self._book(Flow(round_number, site, Direction.TO_SITE, purpose), order)
        back = Flow(round_number, site, Direction.FROM_SITE, purpose)
        booked: Future[Payload] = Future()

        def book(done: Future[Payload]) -> None:
            if done.cancelled():
                booked.cancel()
            elif (error := done.exception()) is not None:
                booked.set_exception(error)
            else:
                self._book(back, done.result())
                booked.set_result(done.result())

        answer = self._sites[site].deliver(order, key or secrets.token_hex(8), purpose)
        answer.add_done_callback(book)
        return booked

    def drain_traffic(self) -> list[tuple[Flow, int]]:
        """Bytes to and from the sites since the last time, by flow, sorted."""
        with self._traffic_lock:
            return self._traffic.drain()

    def _book(self, flow: Flow, payload: Payload) -> None:
        with self._traffic_lock:
            self._traffic.book(flow, payload.nbytes)

    def close(self) -> None:
        """Release everything at every site; may be called twice.

        What a site that is out of reach still holds ends with its lease.
        """
        self._promises = {}
        releasing: list[Future[None]] = []
        with ExitStack() as asking:
            for site in self._sites.values():
                asking.callback(lambda site: releasing.append(site.release()), site)
        ended, _ = wait(releasing, timeout=RELEASE_S)
        for error in [each.exception() for each in ended]:
            if error is not None and not isinstance(error, SiteUnreachable):
                raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
