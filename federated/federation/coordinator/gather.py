"""Gathers the sites' answers to one query about clients, until every client is answered for.

Each site gets one order about its share. A lost site leaves its share behind: the clients that may
move go to the other sites as further orders, whose answers add up with the rest; the others wait
for the site. So every client is in exactly one answer, even if sites are lost. A site whose answer
does not count is asked nothing more of this query, and its share is treated like that of a lost
site. `core.rounds.participation` decides which clients a round may do without, and when.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol

from fedpilot.mediator import FederationMediator, Payload, Share, SiteUnreachable
from fedpilot.mediator.errors import AnswerUnreadable

from ...core.population.shares import part_name
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
"""Then one looks again, whether anything has happened or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Clients whose answer is wanted from one site."""

    site: str
    stays: Share = ()
    """Those that no other site may be asked about."""
    moves: Share = ()

    @property
    def share(self) -> Share:
        """All of them, as the order says it."""
        return tuple(sorted((*self.stays, *self.moves), key=lambda each: each.start))


class AnswerCheck(Protocol):
    """The part of a query that a late answer needs."""

    @property
    def round_number(self) -> int: ...

    def check(self, share: Share, answer: Payload) -> None:
        """AnswerRefused for what cannot be an answer to the order about these clients."""

    def refused(self, site: str, error: Exception) -> bool:
        """Note that an answer of a site does not count; whether it takes no further part."""


class Query(AnswerCheck, Protocol):
    """What is asked about clients."""

    @property
    def name(self) -> str:
        """Such as `round 3`, for errors."""

    def send(self, site: str, share: Share) -> Future[Payload]:
        """Send the order about these clients."""

    def close(self, site: str, share: Share) -> None:
        """Have that order answered with what is done of it."""

    def covered(self, share: Share, answer: Payload) -> int:
        """How many clients a checked answer covers; only asked where some may be missing.

        AnswerRefused if it covers others than these.
        """

    def most(self, share: Share) -> int:
        """How many of these clients it is about."""

    def review(self, answered: Sequence[Answered]) -> Mapping[str, Exception]:
        """The sites whose answers do not count beside all the others, and why."""

    def site_changed(self) -> None:
        """Sites were lost or came back."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, and what it is about."""

    part: Part
    payload: Payload
    clients: int
    """How many it covers, where that was asked for."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """An order that was not waited for any longer; its answer may still come."""

    query: AnswerCheck
    part: Part
    answer: Future[Payload]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a query brought in."""

    all: Sequence[Answered]
    missing: Sequence[Part]
    """Parts without an answer."""
    late: Sequence[Unanswered]
    """Missing parts whose sites may still answer."""
    reason: str
    """Why it was closed, or clients were left out; empty if neither happened."""


@dataclass(slots=True)
class _Open:
    part: Part
    done: int = 0
    """Clients that the site says are done."""


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
        """Ask, and wait for the answers; TooFewSites, BelowQuorum, or what the work raised."""
        self._waiting = list(parts)
        with self._events.heard_by(self._hear):
            while not self._is_over():
                pass
        if self._reason and self._covered() < self._rules.least:
            raise BelowQuorum(self._query.name, self._covered(), self._rules.least, self._reason)
        late = [Unanswered(self._query, each.part, answer) for answer, each in self._open.items()]
        return Answers(all=self._answered, missing=self._missing, late=late, reason=self._reason)

    def _is_over(self) -> bool:
        """One turn: send what can be sent, see what is due, wait for something to happen."""
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
        """Ask a site nothing more: of this query, or of all."""
        self._left_out[site] = str(error)
        if self._query.refused(site, error):
            number = self._query.round_number
            self._membership.distrust(site, str(error), round_number=number)

    def _left_some_out(self) -> bool:
        """Leave out sites whose answers do not count beside the others; whether there were any."""
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
        """The sites that are asked nothing more, in this query or in any, and why."""
        return {**self._membership.excluded, **self._left_out}

    # -- what happens meanwhile -------------------------------------------------------------------

    def _hear(self, site: str, payload: Payload | None) -> None:
        if payload is None:
            self._happened.put(self._query.site_changed)
        elif payload.kind == "clients_done":
            self._happened.put(lambda: self._progress(site, payload))

    def _progress(self, site: str, payload: Payload) -> None:
        try:
            told = believed(payload.kind, payload.header)
        except NotBelieved:
            return  # the log has it
        if told["round"] != self._query.round_number:
            return
        for each in self._open.values():
            if each.part.site == site and part_name(each.part.share) == told["part"]:
                each.done = min(told["done"], self._query.most(each.part.share))

    def _wait(self, seconds: float | None) -> None:
        """Wait until something has happened, `seconds` at most."""
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
    """Ask every site about its clients, or about those of `parts`; tell if some were left out."""
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


def parts_of(mediator: FederationMediator) -> list[Part]:
    """Every site's clients: those that have to stay there, and those that may move."""
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
