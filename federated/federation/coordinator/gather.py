"""Gathers the sites' answers to one query about clients, until every client is answered for.

Each site gets one order about its share. A lost site leaves its share behind: the clients that may
move go to the other sites as further orders, whose answers add up with the rest; the others wait
for the site. So every client is in exactly one answer, even if sites are lost. A site whose answer
does not count gets no further orders of this query, and its share is treated like a lost site's.
`core.rounds.participation` decides which clients a round may do without, and when.
"""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from fedpilot.mediator import FederationMediator, Payload, Share, SiteUnreachable
from fedpilot.mediator.errors import AnswerUnreadable

from ...core.population.shares import Mask, held, part_name
from ...core.rounds.participation import (
    BelowQuorum,
    Close,
    Done,
    Fail,
    Forgo,
    GatherStatus,
    Rules,
    SiteRefused,
    TooFewSites,
    Wait,
    step,
)
from ...core.rounds.site_events import NotBelieved, believed
from ...core.sums.amounts import AnswerRefused
from ...errors import FederatedError
from ..events import Emit

LONGEST_WAIT_S = 3600.0
"""The longest wait before the state is checked again without an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Clients that one site must answer for."""

    site: str
    stays: Share = ()
    """Clients that no other site may be asked about."""
    moves: Share = ()

    @property
    def share(self) -> Share:
        """All of them, as in the order."""
        return tuple(sorted((*self.stays, *self.moves), key=lambda each: each.start))


class AnswerCheck(Protocol):
    """The part of a query that a late answer needs."""

    @property
    def round_number(self) -> int: ...

    def check(self, share: Share, answer: Payload) -> None:
        """Raise AnswerRefused for an impossible answer to the order about these clients."""

    def refused(self, site: str, error: Exception) -> bool:
        """Record that a site's answer does not count; return whether the site is excluded."""


class Query(AnswerCheck, Protocol):
    """A query about clients."""

    @property
    def name(self) -> str:
        """Such as `round 3`, for errors."""

    def send(self, site: str, share: Share) -> Future[Payload]:
        """Send the order about these clients."""

    def close(self, site: str, share: Share) -> None:
        """Have the site answer that order with its finished work."""

    def covered(self, share: Share, answer: Payload) -> int:
        """How many clients a checked answer covers, if some may be missing; or AnswerRefused."""

    def most(self, share: Share) -> int:
        """How many of these clients the query is about."""

    def review(self, answered: Sequence[Answered]) -> Mapping[str, Exception]:
        """Sites whose answers do not count next to all the others, and why."""

    def site_changed(self) -> None:
        """Called when sites were lost or came back."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer and the clients of its order."""

    part: Part
    payload: Payload
    clients: int
    """How many clients it covers, if the query asked."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """An order that the query stopped waiting for; its answer may still arrive."""

    query: AnswerCheck
    part: Part
    answer: Future[Payload]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The result of a query."""

    all: Sequence[Answered]
    missing: Sequence[Part]
    late: Sequence[Unanswered]
    """Missing parts whose sites may still answer."""
    reason: str
    """Why the query closed early or left clients out; empty if it did neither."""


@dataclass(slots=True)
class _Open:
    part: Part
    done: int = 0
    """Finished clients, as the site reports."""


class Gather:
    """One query under way."""

    def __init__(
        self,
        query: Query,
        mediator: FederationMediator,
        rules: Rules,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._query = query
        self._membership, self._events = mediator.membership, mediator.events
        self._rules = rules
        self._clock = clock
        self._started = clock()
        self._happened: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._open: dict[Future[Payload], _Open] = {}
        self._waiting: list[Part] = []
        self._waiting_since: float | None = None
        self._closed: float | None = None
        self._answered: list[Answered] = []
        self._missing: list[Part] = []
        self._left_out: dict[str, str] = {}
        """Sites whose answers do not count, and why."""
        self._reason = ""

    def answers(self, parts: Sequence[Part]) -> Answers:
        """Send orders and wait; raises TooFewSites, BelowQuorum, or the work's own error."""
        self._waiting = list(parts)
        with self._events.heard_by(self._hear):
            while not self._is_over():
                pass
        if self._reason and self._covered() < self._rules.least:
            raise BelowQuorum(self._query.name, self._covered(), self._rules.least, self._reason)
        late = [Unanswered(self._query, each.part, answer) for answer, each in self._open.items()]
        return Answers(all=self._answered, missing=self._missing, late=late, reason=self._reason)

    def _is_over(self) -> bool:
        """Take one turn: send possible orders, check what is due, wait for an event."""
        if self._closed is None:
            self._send_waiting()
        now = self._clock()
        match step(self._standing(), now, self._rules):
            case Done():
                if self._left_some_out():
                    return False
                self._missing += [each.part for each in self._open.values()]
                return True
            case Fail(lacking, never=True):
                raise SiteRefused(self._query.name, lacking)
            case Fail(lacking, waited_s=waited_s):
                raise TooFewSites(self._query.name, lacking, waited_s)
            case Close(reason):
                self._reason, self._closed = reason, now
                self._forgo()
                for each in self._open.values():
                    self._query.close(each.part.site, each.part.share)
            case Forgo(lacking):
                self._reason = lacking
                self._forgo()
            case Wait(seconds):
                self._wait(seconds)
        return False

    def _forgo(self) -> None:
        self._missing += self._waiting
        self._waiting = []
        self._waiting_since = None

    def _standing(self) -> GatherStatus:
        vital = self._membership.lacking()
        lacking = None
        never = [part for part in self._waiting if self._is_never_answered(part)]
        if self._waiting:
            sites = sorted({part.site for part in self._waiting})
            whys = "; ".join(filter(None, map(self._membership.why_gone, sites)))
            lacking = vital or (
                f"clients wait for site {', '.join(sites)}, which is not there"
                f"{f': {whys}' if whys else ''}"
            )
        if never and not vital:
            refused, sites_left = self._refused(), sorted({part.site for part in never})
            lacking = "; ".join(f"site {site}: {refused[site]}" for site in sites_left)
        return GatherStatus(
            started=self._started,
            open=len(self._open),
            covered=self._covered(),
            reported=sum(each.done for each in self._open.values()),
            lacking=lacking,
            vital=vital is not None,
            hopeless=vital is not None and self._membership.hopeless(),
            lacking_since=self._waiting_since or 0.0,
            some_never=bool(never),
            all_never=bool(never) and len(never) == len(self._waiting),
            closed=self._closed,
        )

    def _covered(self) -> int:
        return sum(each.clients for each in self._answered)

    # -- orders -----------------------------------------------------------------------------------

    def _send_waiting(self) -> None:
        waiting, self._waiting = [part for part in self._waiting if part.share], []
        if waiting and self._membership.closed:
            raise FederatedError(f"{self._query.name}: the federation was closed meanwhile")
        if self._membership.lacking() is not None:
            self._waiting = waiting
        else:
            there = set(self._membership.sites) - set(self._left_out)
            for part in waiting:
                if part.site in there:
                    self._send(part)
                    continue
                dealt = self._membership.share_out(part.moves, without=self._left_out)
                for site, share in dealt.items():
                    self._send(Part(site=site, moves=share))
                rest = replace(part, moves=()) if dealt else part
                if rest.share:
                    self._waiting.append(rest)
        if not self._waiting:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = self._clock()

    def _send(self, part: Part) -> None:
        answer = self._query.send(part.site, part.share)
        self._open[answer] = _Open(part)
        answer.add_done_callback(lambda done: self._happened.put(lambda: self._answer(done)))

    def _answer(self, done: Future[Payload]) -> None:
        part = self._open.pop(done).part
        number = self._query.round_number
        try:
            payload = done.result()
            self._query.check(part.share, payload)
            counts = self._rules.by_clock
            clients = self._query.covered(part.share, payload) if counts else 0
        except SiteUnreachable as error:
            self._membership.give_up(part.site, error, round_number=number)
        except (AnswerRefused, AnswerUnreadable) as error:
            self._leave_out(part.site, error)
        except Exception as error:
            if len(self._membership.sites) > 1 and not hasattr(error, "site"):
                error.add_note(f"at site {part.site}")
            raise
        else:
            self._answered.append(Answered(part, payload, clients))
            return
        self._query.site_changed()
        self._is_open_again(part)

    def _is_open_again(self, part: Part) -> None:
        if self._closed is None:
            self._waiting.append(part)
        else:
            self._missing.append(part)

    # -- answers that do not count ----------------------------------------------------------------

    def _leave_out(self, site: str, error: Exception) -> None:
        """Exclude a site from this query or from all."""
        self._left_out[site] = str(error)
        if self._query.refused(site, error):
            number = self._query.round_number
            self._membership.distrust(site, str(error), round_number=number)

    def _left_some_out(self) -> bool:
        """Exclude sites whose answers do not count next to the others; return whether any."""
        problems = self._query.review(self._answered)
        for site, error in problems.items():
            self._leave_out(site, error)
        left = [each for each in self._answered if each.part.site in problems]
        self._answered = [each for each in self._answered if each.part.site not in problems]
        for each in left:
            self._is_open_again(each.part)
        if left:
            self._query.site_changed()
        return bool(left)

    def _is_never_answered(self, part: Part) -> bool:
        """Whether no site will ever answer for some of these clients."""
        refused = self._refused()
        if part.site not in refused:
            return False
        return bool(part.stays) or set(self._membership.sites) <= set(refused)

    def _refused(self) -> Mapping[str, str]:
        """Sites excluded from this query or from all, and why."""
        return {**self._membership.excluded, **self._left_out}

    # -- events -----------------------------------------------------------------------------------

    def _hear(self, site: str, payload: Payload | None) -> None:
        if payload is None:
            self._happened.put(self._query.site_changed)
        elif payload.kind == "clients_done":
            self._happened.put(lambda: self._progress(site, payload))

    def _progress(self, site: str, payload: Payload) -> None:
        try:
            told = believed(payload.kind, payload.header)
        except NotBelieved:
            return  # already logged
        if told["round"] != self._query.round_number:
            return
        for each in self._open.values():
            if each.part.site == site and part_name(each.part.share) == told["part"]:
                each.done = min(told["done"], self._query.most(each.part.share))

    def _wait(self, seconds: float | None) -> None:
        try:
            act = self._happened.get(
                timeout=LONGEST_WAIT_S if seconds is None else max(0.0, seconds)
            )
            while True:
                act()
                act = self._happened.get_nowait()
        except queue.Empty:
            return


def gather(
    query: Query,
    mediator: FederationMediator,
    rules: Rules,
    *,
    emit: Emit,
    clock: Callable[[], float],
    parts: Sequence[Part] | None = None,
) -> Answers:
    """Query all sites about their clients, or about `parts`; report if clients were left out."""
    asked = parts_of(mediator) if parts is None else parts
    answers = Gather(query, mediator, rules, clock).answers(asked)
    if answers.reason:
        emit(
            "round_quorum",
            round=query.round_number,
            clients=sum(each.clients for each in answers.all),
            of=rules.whole,
            reason=answers.reason,
        )
    return answers


def mask_of(parts: Iterable[Part], population: int) -> Mask:
    """The clients of some parts, a flag for each client of the population."""
    return held(np.arange(population), itertools.chain(*(each.share for each in parts)))


def parts_of(mediator: FederationMediator) -> list[Part]:
    """Every site's clients: those that must stay there, and those that may move."""
    assignment = mediator.membership.assignment
    if not mediator.membership.replacement:
        return [Part(site=site, stays=share) for site, share in assignment.shares.items()]
    return [
        Part(
            site=site,
            stays=assignment.pinned.get(site, ()),
            moves=assignment.movable.get(site, ()),
        )
        for site in assignment.shares
    ]
