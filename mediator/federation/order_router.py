"""OrderRouter: carries orders to sites and answers back, and counts their bytes.

A draining site takes orders while it is at work, and is released after its last answer.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from ..core.traffic import Direction, Flow, TrafficLedger
from ..errors import AnswerUnreadable, SiteLost, SiteUnreachable
from ..workload import Payload
from .futures import failed, settle_as
from .membership import ChangeKind, SiteMembership
from .site import Site

ProblemOf = Callable[[Payload], str]
"""Says what is wrong with an answer; returns "" if nothing is."""


def no_problem(answer: Payload) -> str:
    return ""


class OrderRouter:
    """The orders of one federation; thread-safe."""

    def __init__(
        self,
        sites: Mapping[str, Site],
        membership: SiteMembership,
        counted: Callable[[], list[tuple[Flow, int]]] | None,
    ) -> None:
        """`counted` returns the bytes since its last call; without it, tensors are counted here."""
        self._sites = sites
        self._membership = membership
        self._counted = counted
        self._lock = threading.Lock()
        self._at_work: Counter[str] = Counter()
        self._draining: dict[str, Future[None]] = {}
        self._traffic = TrafficLedger()
        self._traffic_lock = threading.Lock()

    def deliver(
        self,
        site: str,
        order: Payload,
        *,
        round_number: int = 0,
        purpose: str,
        key: str | None = None,
    ) -> Future[Payload]:
        """Send an order to a site; return the future of its answer. Both are booked as traffic.

        Orders with the same `key` are one order; an order without a key is new. The future fails
        with SiteLost for a site that takes no orders.
        """
        back = Flow(round_number, site, Direction.FROM_SITE, purpose)
        booked: Future[Payload] = Future()

        def book(done: Future[Payload]) -> None:
            with self._lock:
                self._at_work[site] -= 1
            if done.cancelled():
                booked.cancel()
            elif (error := done.exception()) is not None:
                booked.set_exception(error)
            else:
                self._book(back, done.result())
                booked.set_result(done.result())
            self._release_if_drained(site)

        with self._lock:
            absence = self._absence(site)
            if not absence:
                self._at_work[site] += 1
        if absence:
            return failed(SiteLost(site, absence))
        self._book(Flow(round_number, site, Direction.TO_SITE, purpose), order)
        answer = self._sites[site].deliver(order, key or secrets.token_hex(8), purpose)
        answer.add_done_callback(book)
        return booked

    def _absence(self, site: str) -> str:
        """Say why a site takes no order, or ""; called under the lock."""
        drains = site in self._draining and self._at_work[site] > 0
        if drains and not self._membership.closed:
            return ""
        return self._membership.absence(site)

    def deliver_to_client(
        self,
        index: int,
        order: Payload,
        *,
        round_number: int = 0,
        purpose: str,
        problem_of: ProblemOf = no_problem,
    ) -> Future[Payload]:
        """Send an order to a client's site.

        If that site is lost, or `problem_of` rejects its answer, the order goes to the client's
        next site, if the client may move.
        """
        membership = self._membership
        site = membership.assignment.site_of(index)
        future: Future[Payload] = Future()

        def ended(done: Future[Payload]) -> None:
            try:
                found = done.result()
                if problem := problem_of(found):
                    raise AnswerUnreadable(site, "AnswerRefused", problem)
            except (SiteUnreachable, AnswerUnreadable) as error:
                membership.give_up(site, error, round_number=round_number)
                try:
                    stays = membership.assignment.site_of(index) == site
                    if stays or membership.lacking() is not None:
                        raise error
                    again = self.deliver_to_client(
                        index,
                        order,
                        round_number=round_number,
                        purpose=purpose,
                        problem_of=problem_of,
                    )
                except BaseException as failure:
                    future.set_exception(failure)
                else:
                    settle_as(again, future)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(found)

        answer = self.deliver(site, order, round_number=round_number, purpose=purpose)
        answer.add_done_callback(ended)
        return future

    def drain(self, site: str, reason: str, *, round_number: int = 0) -> Future[None]:
        """Let a site finish its open orders only; return the future of its release."""
        with self._lock:
            drained = self._draining.setdefault(site, Future())
        self._membership.remove(site, reason, round_number=round_number, kind=ChangeKind.DRAINED)
        self._release_if_drained(site)
        return drained

    def _release_if_drained(self, site: str) -> None:
        with self._lock:
            if self._at_work[site] or site in self._membership.promises:
                return
            drained = self._draining.pop(site, None)
        if drained is not None:
            settle_as(self._sites[site].release(), drained)

    @property
    def counts_on_the_wire(self) -> bool:
        """Whether bytes are counted on the wire, with headers, and not by tensors."""
        return self._counted is not None

    def drain_traffic(self) -> list[tuple[Flow, int]]:
        """Bytes to and from the sites since the last call, by flow, sorted."""
        if self._counted is not None:
            return self._counted()
        with self._traffic_lock:
            return self._traffic.drain()

    def _book(self, flow: Flow, payload: Payload) -> None:
        if self._counted is None:
            with self._traffic_lock:
                self._traffic.book(flow, payload.nbytes)
