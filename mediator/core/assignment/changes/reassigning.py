"""Decides whether clients move to other sites in mid-run so that rounds get shorter, and says why.

Clients move only if that saves more seconds in the rounds that are left than it takes to move their
states. What a move has to keep:

* pinned clients stay, and sites keep the room that `locality` gives them;
* at most a part of a site's clients leaves it at a time (`SHARE`), and no more come to a site than
  fit on its disk;
* no client returns to a site for a number of rounds after it left it, for any reason;
* only sites whose links are known both ways take part, since no other move has a price.

Data costs nothing to move: each site makes the data of a client that any site can train, or has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from fedpilot.common.text.amounts import brief, counted, listed

from ..costs import Prices, places_of
from ..cuts.timed import MoveLimits, TimedRound, refined
from ..records import Assignment, AssignmentProblem, ClientMove, Exchange, RoundWork, SiteCapacity
from ..room import LEAST, Room
from ..shares import joined, members, share_of

Indices = npt.NDArray[np.int64]
SHARE = 0.1
"""The largest part of a site's clients that leaves it at a time; at least one client may. A link's
speed is measured, so it may be another one at the next decision."""


class MoveVerdict(StrEnum):
    """The kind of a decision."""

    MOVE = "move"
    UNKNOWN = "unknown"
    """The links of all sites but one are not known."""
    SHORTEST = "shortest"
    """No allowed move makes a round shorter."""
    TOO_DEAR = "too dear"
    """The move costs more than it saves."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReassignmentProblem:
    """What is known between two rounds."""

    assignment: Assignment
    """All sites that have clients are among `sites`."""
    sites: list[SiteCapacity]
    exchange: Exchange
    work: RoundWork
    state_bytes: int
    """Of what moves with a client."""
    round_number: int
    """The next round."""
    rounds_left: int
    """With the next round."""
    window: int
    """A client that left a site with some round may return with the one so many rounds later."""
    room: Mapping[str, int] = field(default_factory=dict)
    """By site, the bytes that it has left, if that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """What was decided."""

    verdict: MoveVerdict
    reason: str
    moves: tuple[ClientMove, ...] = ()
    saved_s: float = 0.0
    """In each round."""
    moving_s: float = 0.0


def reassignment(problem: ReassignmentProblem) -> Reassignment:
    """Which clients move, if any; the result does not depend on the order of `sites`."""
    sites = sorted(problem.sites, key=lambda site: site.name)
    priced = np.array([None not in (site.link.up, site.link.down) for site in sites])
    if np.count_nonzero(priced) < 2:
        return Reassignment(verdict=MoveVerdict.UNKNOWN, reason=_unknown(sites, priced))
    search = _Search.of(problem, sites, priced)
    return search.decided(problem)


def _unknown(sites: list[SiteCapacity], priced: npt.NDArray[np.bool_]) -> str:
    names = [site.name for site, known in zip(sites, priced, strict=True) if not known]
    whose = "of no site" if not priced.any() else f"of {listed(names)} not"
    return f"the speed of the link is known {whose}, so neither is the cost of moving clients"


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """The clients of all sites, and where they may move."""

    sites: list[SiteCapacity]
    timed: TimedRound
    places: Indices
    """(clients,): where each is now, among `sites`."""
    free: npt.NDArray[np.bool_]
    least: Indices
    most: Indices
    limits: MoveLimits
    state_bytes: int
    rounds_left: int

    @classmethod
    def of(
        cls, problem: ReassignmentProblem, sites: list[SiteCapacity], priced: npt.NDArray[np.bool_]
    ) -> _Search:
        assignment, clients = problem.assignment, problem.assignment.population
        places = places_of(assignment.shares, sites, clients)
        movable = joined(each for share in assignment.movable.values() for each in share)
        room = Room.of(AssignmentProblem(clients=movable, sites=sites, pinned=assignment.pinned))
        free = np.zeros(clients, dtype=bool)
        free[members(movable)] = True
        here = np.bincount(places[free], minlength=len(sites))
        nbytes = max(1, problem.state_bytes)
        coming = [problem.room.get(site.name, clients * nbytes) // nbytes for site in sites]
        limits = MoveLimits(
            leaving=np.maximum(1, np.floor(here * SHARE)).astype(np.int64),
            coming=np.array(coming, dtype=np.int64),
            barred=np.array(list(_barred(problem, sites))).T,
        )
        prices = Prices.of(sites)
        timed = TimedRound.of(clients, problem.exchange, prices, problem.work)
        return cls(
            sites,
            timed,
            places,
            free & priced[places],
            # No client leaves a site without a price, or comes to one.
            np.where(priced, -(-room.goal // LEAST), 0),
            np.where(priced, room.most, 0),
            limits,
            problem.state_bytes,
            problem.rounds_left,
        )

    def decided(self, problem: ReassignmentProblem) -> Reassignment:
        timed, places = self.timed, self.places
        now = timed.seconds(places)
        moved = refined(timed, places, self.free, self.least, self.most, self.limits)
        if (moved == places).all():
            reason = f"no move that is allowed makes a round shorter than {brief(now)}"
            return Reassignment(verdict=MoveVerdict.SHORTEST, reason=reason)
        found = self._worthwhile(moved)
        if (found == places).all():
            found = moved
        clients = int(np.count_nonzero(found != places))
        then, moving = timed.seconds(found), self._moving_s(found)
        saved, left = now - then, self.rounds_left
        shorter = f"a round take {brief(then)} instead of {brief(now)}"
        figures = f"{brief(saved * left)} in the {counted(left, 'round')} left"
        if saved * left <= moving:
            reason = (
                f"to move {counted(clients, 'client')} takes {brief(moving)}, and saves {figures}: "
                f"it makes {shorter}"
            )
            return Reassignment(
                verdict=MoveVerdict.TOO_DEAR, reason=reason, saved_s=saved, moving_s=moving
            )
        reason = (
            f"a round then takes {brief(then)} instead of {brief(now)}, which saves {figures}; "
            f"the move takes {brief(moving)}"
        )
        moves = tuple(self._moves(found, problem.round_number, f"as that makes {shorter}"))
        return Reassignment(
            verdict=MoveVerdict.MOVE, reason=reason, moves=moves, saved_s=saved, moving_s=moving
        )

    def _worthwhile(self, found: Indices) -> Indices:
        """Undo the moves between two sites that save less than they cost, beside the others."""
        best = found
        for origin, to in np.unique(np.stack([self.places, found]), axis=1).T.tolist():
            both = (self.places == origin) & (best == to)
            without = np.where(both, self.places, best)
            if origin != to and self._fits(without) and self._net(without) > self._net(best):
                best = without
        return best

    def _fits(self, places: Indices) -> bool:
        sizes, before = (
            np.bincount(each[self.free], minlength=len(self.sites))
            for each in (places, self.places)
        )
        within = (sizes <= self.most) & (sizes >= self.least)
        return bool((within | (sizes == before)).all())

    def _net(self, places: Indices) -> float:
        """Seconds that the places save in the end."""
        return -self.timed.seconds(places) * self.rounds_left - self._moving_s(places)

    def _moving_s(self, places: Indices) -> float:
        """All sites give, then all take; an order goes to each before that."""
        gone, prices = places != self.places, self.timed.prices
        out, into = (
            np.bincount(each[gone], minlength=len(self.sites)) for each in (self.places, places)
        )
        trips = sum(float((prices.round_trip * (each > 0)).max()) for each in (out, into))
        up = float((out * prices.byte_up).max())
        down = float((into * prices.byte_down).max())
        return (up + down) * self.state_bytes + trips

    def _moves(self, found: Indices, round_number: int, reason: str) -> Iterator[ClientMove]:
        for origin, to in np.unique(np.stack([self.places, found]), axis=1).T.tolist():
            if origin != to:
                both = np.flatnonzero((self.places == origin) & (found == to))
                yield ClientMove(
                    round_number=round_number,
                    origin=self.sites[origin].name,
                    to=self.sites[to].name,
                    clients=share_of(both),
                    reason=reason,
                )


def _barred(
    problem: ReassignmentProblem, sites: list[SiteCapacity]
) -> Iterator[npt.NDArray[np.bool_]]:
    """By site (clients,): who left it too recently to return."""
    for site in sites:
        barred = np.zeros(problem.assignment.population, dtype=bool)
        for move in problem.assignment.moves:
            recent = problem.round_number - move.round_number < problem.window
            if move.origin == site.name and recent:
                barred[members(move.clients)] = True
        yield barred
