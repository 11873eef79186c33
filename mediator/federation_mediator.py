"""FederationMediator: knows the sites, reserves a gang, assigns clients, carries orders.

Sites may be lost and come back while it works. A lost site's clients that may move belong to others
at once; what it was doing is up to whoever waits for that. One that came back is reserved, checked
and started anew before it counts again, and is given clients bit by bit.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from types import TracebackType
from typing import Any, Self, TypeVar

from .core.assignment import (
    Assignment,
    Share,
    SiteCapacity,
    assign,
    reassigned,
    rebalanced,
    shared_out,
    size,
)
from .core.reservation import Answer, Ask, Outcome, Promise, Refusal, Verb, reserve
from .core.traffic import Direction, Flow, TrafficLedger
from .errors import (
    AnswerUnreadable,
    MediatorError,
    RaysUnusable,
    ReservationRefused,
    RunnerDied,
    RunnersSpent,
    SiteLost,
    SiteUnreachable,
)
from .site import GangRequest, Site
from .workload import Notify, Payload

log = logging.getLogger(__name__)

ANSWER_S = 120.0
"""How much longer than the reservation itself a site may take to answer: it starts a process and
attaches to its Ray before it waits for room. One that is out of reach is lost long before that."""
RELEASE_S = 30.0
"""How long `close` waits for the sites; what they still hold then ends with its lease."""


First = TypeVar("First")
Second = TypeVar("Second")
ProblemOf = Callable[[Payload], str]
"""Says what is wrong with an answer; empty if nothing is."""
Hear = Callable[[str, Payload | None], None]
"""Told a site and what happened there; None if the site was lost or came back. It must not wait."""


def no_problem(answer: Payload) -> str:
    """Every answer is taken as it is."""
    return ""


class ChangeKind(StrEnum):
    """What became of a site."""

    LOST = "lost"
    DRAINED = "drained"
    """It finishes what it is at work on: its admin wants it empty."""
    RETURNED = "returned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A site that takes no part any more, or takes part again."""

    site: str
    kind: ChangeKind
    reason: str
    clients: int
    """How many moved to other sites at once."""


class FederationMediator:
    """Spans the sites of one federation; owns what it reserved on them until `close`."""

    def __init__(
        self,
        sites: Iterable[Site],
        *,
        assignment: str = "capacity",
        replacement: bool = True,
        counted: Callable[[], list[tuple[Flow, int]]] | None = None,
    ) -> None:
        """`replacement`: a lost site's clients belong to others; otherwise they wait for it.

        `counted` gives the bytes since its last call where somebody counts them on the wire; left
        out, the bytes of the tensors are counted here.
        """
        self._counted = counted
        self._replacement = replacement
        self._sites = {site.name: site for site in sites}
        self._strategy = assignment
        self._promises: Mapping[str, Promise] = {}
        self._assignment: Assignment | None = None
        self._traffic = TrafficLedger()
        self._traffic_lock = threading.Lock()
        self._lock = threading.Lock()
        """Held while sites come and go; nobody is called under it."""
        self._request: GangRequest | None = None
        self._started: tuple[str, Mapping[str, Payload], Notify] | None = None
        self._wanted, self._least = len(self._sites), 1
        self._required: frozenset[str] = frozenset()
        self._returning: set[str] = set()
        """Sites that may be owed clients since they came back."""
        self._distrusted: dict[str, str] = {}
        self._spent: dict[str, str] = {}
        """Sites where the run's processes died too often."""
        self._gone: dict[str, str] = {}
        """Why each site that was lost or drained takes no part."""
        self._closed = False
        self._left_alone: frozenset[str] = frozenset()
        """Sites that get nothing new."""
        self._at_work: Counter[str] = Counter()
        """Orders that a site has not answered yet."""
        self._draining: dict[str, Future[None]] = {}
        self._changes: list[Change] = []
        self._hearers: list[Hear] = []

    @property
    def closed(self) -> bool:
        """Whether it has ended, and takes no order any more."""
        return self._closed

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that hold a part of the gang; before there is one, all."""
        return tuple(self._sites if self._request is None else self._promises)

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

        As many have to remain while it works, and the required ones; where `min_sites` is left
        out, all have to promise and one has to remain. Raises ReservationRefused, with nothing
        left reserved anywhere.
        """
        enough = len(self._sites) if min_sites is None else min_sites
        self._wanted, self._least = enough, min_sites or 1
        self._required = frozenset(required)
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
            refused = RaysUnusable if outcome.unreachable else ReservationRefused
            raise refused(outcome.refusals)
        self._request, self._promises = request, outcome.promises
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
            except Exception as error:  # a site can name any error of ours
                log.exception("site %s failed to answer", site)
                answers[site] = Refusal(site, f"{type(error).__name__}: {error}")
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

    def assign(
        self, population: int, pinned: Mapping[str, Sequence[range]] | None = None
    ) -> Assignment:
        """Give every client of the population its site; `pinned` ones to where their data is."""
        self._assignment = assign(self._strategy, population, self._capacities(), pinned)
        return self._assignment

    @property
    def assignment(self) -> Assignment:
        """Every client's site; `assign` comes first."""
        if self._assignment is None:
            raise RuntimeError("clients are assigned once the gang is reserved")
        return self._assignment

    def start(self, workload: str, specs: Mapping[str, Payload], notify: Notify) -> None:
        """Check the workload at every site, then start it at every site.

        A site that is lost meanwhile is done without if enough remain.
        """
        self._started = workload, specs, notify
        there = [site for site in specs if site in self._promises]
        died = self._each({site: self._sites[site].check(workload, specs[site]) for site in there})
        there = [site for site in there if site in self._promises]
        died |= self._each({site: self._sites[site].start(self._telling(site)) for site in there})
        for site, error in died.items():
            if self._too_few():
                self._begin_again(site, error)

    def _each(self, answers: Mapping[str, Future[None]]) -> dict[str, RunnerDied]:
        """Wait for all answers; the sites whose runners died, and can be started again.

        Any other loss that leaves too few sites is raised.
        """
        died: dict[str, RunnerDied] = {}
        for site, answer in answers.items():
            try:
                answer.result()
            except (SiteUnreachable, AnswerUnreadable) as error:
                self.give_up(site, error)
                if isinstance(error, RunnerDied) and site not in self._spent:
                    died[site] = error
                elif self._too_few():
                    raise
        return died

    def _too_few(self) -> bool:
        """Whether the sites that are there are not enough to begin with."""
        return len(self._promises) < self._wanted or self.lacking() is not None

    def _begin_again(self, site: str, error: SiteUnreachable) -> None:
        """Have a site whose runner died start another one, until that works or is given up."""
        while True:
            try:
                self.readmit(site).result()
                return
            except RunnersSpent:
                raise
            except RunnerDied as again:
                error = again
            except ReservationRefused:
                raise error from None

    # -- sites that go and come back --------------------------------------------------------------

    def lacking(self) -> str | None:
        """What keeps a gang from working, in words: too few sites, or a required one."""
        if self._request is None:
            return None
        there = self._promises
        if gone := sorted(self._required - set(there)):
            why = self._gone.get(gone[0], "")
            return f"site {gone[0]} is required and not there{f': {why}' if why else ''}"
        if len(there) < self._least:
            whys = "".join(f"; site {site} is gone: {why}" for site, why in self._gone.items())
            return (
                f"at least {self._least} of {len(self._sites)} sites are needed, "
                f"{len(there)} are there{whys}"
            )
        return None

    def hopeless(self) -> bool:
        """Whether no site that may return could make up a gang."""
        out = self.excluded
        may = [site for site in self._sites if site not in out]
        return len(may) < self._least or not self._required.isdisjoint(out)

    def why_gone(self, site: str) -> str:
        """Why a site takes no part; empty if it does, or never did."""
        return self._gone.get(site, "")

    def lose(self, site: str, reason: str, *, round_number: int = 0) -> None:
        """Go on without a site; does nothing if that is so already.

        Its clients that may move belong to others from `round_number` on. What it is at work on
        is left to whoever waits for that.
        """
        self._do_without(site, ChangeKind.LOST, reason, round_number)

    def _do_without(self, site: str, kind: ChangeKind, reason: str, round_number: int) -> None:
        with self._lock:
            if site not in self._promises:
                return
            self._promises = {s: p for s, p in self._promises.items() if s != site}
            self._gone[site] = reason
            if kind is ChangeKind.DRAINED:
                self._draining.setdefault(site, Future())
            self._returning.discard(site)
            clients = 0
            if self._assignment is not None and self._replacement:
                before = self._assignment
                self._assignment = reassigned(
                    before,
                    site,
                    self._open_capacities(),
                    round_number=round_number,
                    reason=f"which was {kind}: {reason}",
                )
                clients = size(before.share(site)) - size(self._assignment.share(site))
            change = Change(site=site, kind=kind, reason=reason, clients=clients)
            self._changes.append(change)
        self._tell(site, None)

    def distrust(self, site: str, reason: str, *, round_number: int = 0) -> None:
        """Go on without a site for good: what it answers cannot be believed."""
        self._distrusted[site] = reason
        self.lose(site, reason, round_number=round_number)

    def give_up(
        self, site: str, error: SiteUnreachable | AnswerUnreadable, *, round_number: int = 0
    ) -> None:
        """Go on without a site that failed so: for good where it cannot be believed, or where its
        processes died too often.
        """
        if isinstance(error, RunnersSpent):
            self._spent[site] = error.reason
        if isinstance(error, SiteUnreachable):
            self.lose(site, error.reason, round_number=round_number)
        else:
            self.distrust(site, str(error), round_number=round_number)

    @property
    def distrusted(self) -> Mapping[str, str]:
        """The sites whose answers cannot be believed, and why."""
        return self._distrusted

    @property
    def excluded(self) -> Mapping[str, str]:
        """The sites that take no part any more in this run, and why."""
        return {**self._spent, **self._distrusted}

    def drain(self, site: str, reason: str, *, round_number: int = 0) -> Future[None]:
        """Have a site finish what it is at work on, and no more; the end of its release."""
        self._do_without(site, ChangeKind.DRAINED, reason, round_number)
        with self._lock:
            drained = self._draining.setdefault(site, Future())  # one that was lost is released
        self._release_if_drained(site)
        return drained

    def _release_if_drained(self, site: str) -> None:
        with self._lock:
            drained = None if self._at_work[site] else self._draining.pop(site, None)
        if drained is not None:
            _settled_as(self._sites[site].release(), drained)

    def add(self, site: Site, spec: Payload) -> None:
        """Know one more site, which `readmit` can then bring in."""
        self._sites = {**self._sites, site.name: site}
        if self._started is not None:
            workload, specs, notify = self._started
            self._started = workload, {**specs, site.name: spec}, notify

    def readmit(self, site: str) -> Future[Promise]:
        """Have a site that is not there reserve, check and start; it counts once that is done.

        Asked of one that is there, it changes nothing. Fails with why it cannot be, and then the
        site holds nothing.
        """
        promised = self._promises.get(site)
        future: Future[Promise] = Future()
        if promised is not None:
            future.set_result(promised)
            return future
        if (why := self.excluded.get(site)) is not None:
            future.set_exception(ReservationRefused({site: why}))
            return future
        if self._request is None or self._started is None:
            raise RuntimeError("a site comes back to a federation that has been started")
        workload, specs, _ = self._started
        there = self._sites[site]
        made: list[Promise] = []

        def commit(answer: Answer) -> Future[None]:
            if not isinstance(answer, Promise):
                reason = "no answer" if answer is None else answer.reason
                raise ReservationRefused({site: reason})
            made.append(answer)
            return there.commit()

        def ended(started: Future[Any]) -> None:
            error = started.exception()
            if error is None and self._request is not None:
                self.returned(site, made[0])
                future.set_result(made[0])
            else:
                there.release()
                if isinstance(error, RunnersSpent):
                    self._spent[site] = self._gone[site] = error.reason
                    self._tell(site, None)
                future.set_exception(error or MediatorError("the federation has ended meanwhile"))

        steps = _followed(there.prepare(self._request), commit)
        steps = _followed(steps, lambda _: there.check(workload, specs[site]))
        steps = _followed(steps, lambda _: there.start(self._telling(site)))
        steps.add_done_callback(ended)
        return future

    def returned(self, site: str, promise: Promise) -> None:
        """A site holds its part of the gang again, and its workload has been started there."""
        with self._lock:
            self._promises = {
                s: promise if s == site else self._promises[s]
                for s in self._sites
                if s == site or s in self._promises
            }
            self._gone.pop(site, None)
            self._returning.add(site)
            back = Change(site=site, kind=ChangeKind.RETURNED, reason="it is back", clients=0)
            self._changes.append(back)
        self._tell(site, None)

    def rebalance(self, at_most: float, *, round_number: int = 0) -> None:
        """Give sites that came back a part of what they lack: at most that of all who may move."""
        with self._lock:
            for site in sorted(self._returning - self._left_alone):
                before = self.assignment
                self._assignment = rebalanced(
                    before, site, self._capacities(), at_most, round_number=round_number
                )
                if self._assignment is before:
                    self._returning.discard(site)

    @property
    def replaces(self) -> bool:
        """Whether a lost site's clients that may move belong to others."""
        return self._replacement

    def share_out(self, share: Share, *, without: Collection[str] = ()) -> dict[str, Share]:
        """Deal clients out to the sites that are there, in proportion to their vnodes.

        Nothing is dealt out where all of those are left alone or among `without`.
        """
        if not (open_ := [each for each in self._open_capacities() if each.name not in without]):
            return {}
        return {site: its for site, its in shared_out(share, open_).items() if its}

    def leave_alone(self, sites: Collection[str]) -> None:
        """Have these sites, and no others, keep what they have and get nothing new."""
        with self._lock:
            before, self._left_alone = self._left_alone, frozenset(sites)
            changed = sorted(before ^ self._left_alone)
        for site in changed:
            self._tell(site, None)

    def drain_changes(self) -> list[Change]:
        """The sites that went or came back since the last time, in that order."""
        with self._lock:
            changes, self._changes = self._changes, []
        return changes

    @contextmanager
    def heard_by(self, hear: Hear) -> Iterator[None]:
        """Tell somebody what happens at sites, from whichever thread it happens in."""
        self._hearers = [*self._hearers, hear]
        try:
            yield
        finally:
            self._hearers = [each for each in self._hearers if each is not hear]

    def _telling(self, site: str) -> Notify:
        if self._started is None:
            raise RuntimeError("sites tell what happens once they are started")
        notify = self._started[2]

        def told(payload: Payload) -> None:
            # Whose event it is, is not for the site to say.
            whose = {"site": site}
            known = replace(payload, header=whose | dict(payload.header) | whose)
            notify(known)
            self._tell(site, known)

        return told

    def _tell(self, site: str, payload: Payload | None) -> None:
        for hear in self._hearers:
            hear(site, payload)

    def _capacities(self) -> list[SiteCapacity]:
        return [SiteCapacity(p.site, p.vnodes) for p in self._promises.values()]

    def _open_capacities(self) -> list[SiteCapacity]:
        """Of those that may get something new."""
        return [each for each in self._capacities() if each.name not in self._left_alone]

    # -- orders -----------------------------------------------------------------------------------

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
        A site that is lost meanwhile gets none: the future fails with SiteLost. One that drains
        does while it is at work, and is released after that.
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
            absent = self._absent(site)
            if not absent:
                self._at_work[site] += 1
        if absent:
            booked.set_exception(SiteLost(site, absent))
            return booked
        self._book(Flow(round_number, site, Direction.TO_SITE, purpose), order)
        answer = self._sites[site].deliver(order, key or secrets.token_hex(8), purpose)
        answer.add_done_callback(book)
        return booked

    def _absent(self, site: str) -> str:
        """Why a site takes no order; empty if it does. The lock is held."""
        if self._closed:
            return "the federation has ended"
        if self._request is None or site in self._promises:
            return ""
        if site in self._draining and self._at_work[site]:
            return ""
        return self._gone.get(site, "it holds no part of the gang")

    def deliver_to_client(
        self,
        index: int,
        order: Payload,
        *,
        round_number: int = 0,
        purpose: str,
        problem_of: ProblemOf = no_problem,
    ) -> Future[Payload]:
        """Send an order to the site that a client belongs to.

        If that site is lost and the client may move, the order goes to its next site. So it does
        where `problem_of` says what is wrong with an answer: that site is not believed any more.
        """
        site = self.assignment.site_of(index)
        future: Future[Payload] = Future()
        answer = self.deliver(site, order, round_number=round_number, purpose=purpose)

        def ended(done: Future[Payload]) -> None:
            try:
                found = done.result()
                if problem := problem_of(found):
                    raise AnswerUnreadable(site, "AnswerRefused", problem)
            except (SiteUnreachable, AnswerUnreadable) as error:
                self.give_up(site, error, round_number=round_number)
                try:
                    if self.lacking() is not None or self.assignment.site_of(index) == site:
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
                    _settled_as(again, future)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(found)

        answer.add_done_callback(ended)
        return future

    @property
    def counts_on_the_wire(self) -> bool:
        """Whether bytes are counted on the wire, headers and all, and not by their tensors."""
        return self._counted is not None

    def drain_traffic(self) -> list[tuple[Flow, int]]:
        """Bytes to and from the sites since the last time, by flow, sorted."""
        if self._counted is not None:
            return self._counted()
        with self._traffic_lock:
            return self._traffic.drain()

    def _book(self, flow: Flow, payload: Payload) -> None:
        if self._counted is None:
            with self._traffic_lock:
                self._traffic.book(flow, payload.nbytes)

    def close(self) -> None:
        """Release everything at every site; may be called twice.

        What a site that is out of reach still holds ends with its lease.
        """
        with self._lock:
            self._closed = True
            self._promises, self._request, self._started = {}, None, None
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


def _settled_as(first: Future[First], future: Future[First]) -> None:
    """Have a future end as another one does."""

    def ended(done: Future[First]) -> None:
        try:
            future.set_result(done.result())
        except BaseException as error:
            future.set_exception(error)

    first.add_done_callback(ended)


def _followed(first: Future[First], act: Callable[[First], Future[Second]]) -> Future[Second]:
    """The future of what is begun once another one is there; fails as either does."""
    second: Future[Second] = Future()

    def begin(done: Future[First]) -> None:
        try:
            _settled_as(act(done.result()), second)
        except BaseException as error:
            second.set_exception(error)

    first.add_done_callback(begin)
    return second
