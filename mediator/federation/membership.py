"""SiteMembership: which sites take part in a federation, and which clients each site has.

Other sites get a lost site's movable clients at once. A returned site gets clients gradually.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from ..core.assignment import (
    Assignment,
    ChosenStrategy,
    ClientMove,
    Exchange,
    Explained,
    Reassignment,
    ReassignmentProblem,
    RoundWork,
    Share,
    SiteCapacity,
    assign,
    explained,
    moved,
    name_of,
    reassigned,
    reassignment,
    rebalanced,
    shared_out,
    size,
)
from ..core.links import LinkSpeed
from ..core.reservation import Promise, SiteQuorum
from ..errors import AnswerUnreadable, RunnersSpent, SiteUnreachable

NEWS = 0.1
"""A site's pace counts as changed from a tenth on."""


class ChangeKind(StrEnum):
    """How a site's membership changed."""

    LOST = "lost"
    DRAINED = "drained"
    """Its admin wants it empty; it finishes its open orders."""
    RETURNED = "returned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A site that stopped taking part, or takes part again."""

    site: str
    kind: ChangeKind
    reason: str
    clients: int
    """How many clients moved to other sites at once."""


class SiteMembership:
    """The sites of one federation; thread-safe."""

    def __init__(
        self,
        sites: Iterable[str],
        *,
        strategy: ChosenStrategy,
        replacement: bool,
        tell: Callable[[str], None],
    ) -> None:
        """`tell` is called, without the lock, with each site that changed."""
        self._known = tuple(sites)
        self._strategy = strategy
        self.replacement = replacement
        """Whether other sites get a lost site's movable clients."""
        self._tell = tell
        self._lock = threading.Lock()
        self._quorum = SiteQuorum(to_begin=len(self._known))
        self._formed = False
        self._assignment: Assignment | None = None
        self._pace: float | None = None
        """Seconds per sample of a vnode, if it was known when clients were assigned."""
        self._paces: Mapping[str, float] = {}
        """The same of single sites, as their rounds have shown it since."""
        self._round: tuple[Exchange | None, RoundWork] | None = None
        """What the clients were assigned by, if the costs of a round are known."""
        self._gone: dict[str, str] = {}
        """Why each lost or drained site takes no part."""
        self._returning: set[str] = set()
        """Returned sites that may still lack clients."""
        self._left_alone: frozenset[str] = frozenset()
        """Sites that get no new clients."""
        self._spent: dict[str, str] = {}
        """Sites where the run's runners died too often, and why."""
        self._changes: list[Change] = []
        self.distrusted: dict[str, str] = {}
        """Sites with answers that cannot be trusted, and why."""
        self.promises: Mapping[str, Promise] = {}
        """Each site's part of the gang; replaced as a whole."""
        self.closed = False
        """Whether the federation has ended and takes no more orders."""

    # -- the gang ---------------------------------------------------------------------------------

    def require(self, quorum: SiteQuorum) -> None:
        """Set the quorum."""
        self._quorum = quorum

    def form(self, promises: Mapping[str, Promise]) -> None:
        """Record the gang and the sites that hold it."""
        self._formed, self.promises = True, promises

    def end(self) -> None:
        """End the federation: no site takes part any more."""
        with self._lock:
            self.closed = True
            self._formed, self.promises = False, {}

    def know(self, site: str) -> None:
        """Add a site, which takes no part yet."""
        if site not in self._known:
            self._known = (*self._known, site)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that hold a part of the gang; all sites before there is one."""
        return tuple(self.promises) if self._formed else self._known

    @property
    def excluded(self) -> Mapping[str, str]:
        """The sites that are excluded from this run for good, and why."""
        return {**self._spent, **self.distrusted}

    def lacking(self) -> str | None:
        """Say what keeps the gang from working: too few sites, or a required one."""
        if not self._formed:
            return None
        return self._quorum.lacking(self.promises, known=self._known, gone=self._gone)

    def too_few_to_begin(self) -> bool:
        """Whether too few sites take part to begin."""
        return len(self.promises) < self._quorum.to_begin or self.lacking() is not None

    def hopeless(self) -> bool:
        """Whether the sites that may return cannot form a gang."""
        return self._quorum.hopeless(self._known, self.excluded)

    def why_gone(self, site: str) -> str:
        """Why a site takes no part; empty if it does, or never did."""
        return self._gone.get(site, "")

    def absence(self, site: str) -> str:
        """Why a site takes no orders; empty if it does."""
        with self._lock:
            if self.closed:
                return "the federation has ended"
            if not self._formed or site in self.promises:
                return ""
            return self._gone.get(site, "it holds no part of the gang")

    # -- sites that go and come back --------------------------------------------------------------

    def remove(
        self,
        site: str,
        reason: str,
        *,
        round_number: int = 0,
        kind: ChangeKind = ChangeKind.LOST,
    ) -> None:
        """Go on without a site; does nothing if it is gone already.

        Other sites get its movable clients from `round_number` on. Callers handle its open orders.
        """
        with self._lock:
            if site not in self.promises:
                return
            self.promises = {s: p for s, p in self.promises.items() if s != site}
            self._gone[site] = reason
            self._returning.discard(site)
            clients = 0
            if self._assignment is not None and self.replacement:
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
        self._tell(site)

    def distrust(self, site: str, reason: str, *, round_number: int = 0) -> None:
        """Exclude a site for good, since its answers cannot be trusted."""
        self.distrusted[site] = reason
        self.remove(site, reason, round_number=round_number)

    def give_up(
        self, site: str, error: SiteUnreachable | AnswerUnreadable, *, round_number: int = 0
    ) -> None:
        """Go on without a failed site: for good after untrusted answers or too many deaths."""
        if isinstance(error, RunnersSpent):
            self._spent[site] = error.reason
        if isinstance(error, SiteUnreachable):
            self.remove(site, error.reason, round_number=round_number)
        else:
            self.distrust(site, str(error), round_number=round_number)

    def spend(self, site: str, reason: str) -> None:
        """Exclude an absent site where the run's runners died too often."""
        self._spent[site] = self._gone[site] = reason
        self._tell(site)

    def may_start(self, site: str) -> bool:
        """Whether another runner may be started for this run at a site."""
        return site not in self._spent

    def restore(self, site: str, promise: Promise) -> None:
        """Record that a site holds its part of the gang again."""
        with self._lock:
            self.promises = {
                s: promise if s == site else self.promises[s]
                for s in self._known
                if s == site or s in self.promises
            }
            self._gone.pop(site, None)
            self._returning.add(site)
            back = Change(site=site, kind=ChangeKind.RETURNED, reason="it is back", clients=0)
            self._changes.append(back)
        self._tell(site)

    def drain_changes(self) -> list[Change]:
        """Return and clear the sites that left or returned since the last call, in order."""
        with self._lock:
            changes, self._changes = self._changes, []
        return changes

    # -- clients ----------------------------------------------------------------------------------

    @property
    def assignment(self) -> Assignment:
        """Every client's site; RuntimeError before `assign`."""
        if self._assignment is None:
            raise RuntimeError("clients are assigned once the gang is reserved")
        return self._assignment

    def assign(
        self,
        population: int,
        pinned: Mapping[str, Sequence[range]] | None = None,
        exchange: Exchange | None = None,
        work: RoundWork | None = None,
        labels: npt.NDArray[np.int64] | None = None,
        *,
        seconds_per_sample: float | None = None,
    ) -> Assignment:
        """Assign every client to a site; `pinned` ones to the site of their data.

        `seconds_per_sample` is the pace of a vnode, the same at all sites.
        """
        self._pace = seconds_per_sample
        there = self._capacities()
        self._round = None if work is None else (exchange, work)
        self._assignment = assign(self._strategy, population, there, pinned, exchange, work, labels)
        return self._assignment

    def explain(self, index: int) -> Explained:
        """Why a client is at its site, which site is the next best one, and what would move it."""
        exchange, work = self._round or (None, None)
        return explained(index, self.assignment, self._capacities(), work, exchange)

    def assign_as(
        self,
        shares: Mapping[str, Share],
        given: Mapping[str, int] | None = None,
        moves: Iterable[ClientMove] = (),
    ) -> None:
        """Assign movable clients as before; sites that are not there keep theirs.

        `given` is how many the strategy gave each site, if clients have made `moves` since.
        """
        past = tuple(moves)
        if not past and self._assignment is not None and self._assignment.shares == shares:
            return
        self._assignment = Assignment(
            strategy=name_of(self._strategy),
            movable=dict(shares),
            pinned=self.assignment.pinned,
            given=given or {site: size(share) for site, share in shares.items()},
            moves=past,
            reason="the run was resumed, and its clients keep their sites",
        )

    def rebalance(self, at_most: float, *, round_number: int = 0) -> None:
        """Give each returned site clients that it lacks, at most this part of all movable ones.

        Without replacement all clients stay.
        """
        if not self.replacement:
            return
        with self._lock:
            for site in sorted(self._returning - self._left_alone):
                before = self.assignment
                self._assignment = rebalanced(
                    before, site, self._capacities(), at_most, round_number=round_number
                )
                if self._assignment is before:
                    self._returning.discard(site)

    def move(self, moves: Sequence[ClientMove]) -> None:
        """Give movable clients to sites that have what they keep."""
        with self._lock:
            self._assignment = moved(self.assignment, moves)
        for site in sorted({site for each in moves for site in (each.origin, each.to)}):
            self._tell(site)

    def reassignment(
        self,
        *,
        state_bytes: int,
        round_number: int,
        rounds_left: int,
        window: int,
        room: Mapping[str, int],
    ) -> Reassignment | None:
        """Which clients should move before a round, by the links and paces as they are now.

        None if clients were not assigned by the costs of a round, or if a site that has clients
        is not there. See `ReassignmentProblem` for the arguments.
        """
        assignment, there = self.assignment, self._capacities()
        exchange, work = self._round or (None, None)
        if exchange is None or work is None or not self._all_are_there():
            return None
        problem = ReassignmentProblem(
            assignment=assignment,
            sites=there,
            exchange=exchange,
            work=work,
            state_bytes=state_bytes,
            round_number=round_number,
            rounds_left=rounds_left,
            window=window,
            room={**room, **dict.fromkeys(self._left_alone, 0)},
        )
        return reassignment(problem)

    def know_links(self, links: Mapping[str, LinkSpeed]) -> None:
        """Take what is known of sites' links now; a promise completes what is not."""
        with self._lock:
            self.promises = {
                site: replace(promise, link=links[site].or_else(promise.link))
                if site in links
                else promise
                for site, promise in self.promises.items()
            }

    def know_paces(self, paces: Mapping[str, float]) -> None:
        """Take the seconds per sample of a vnode that sites' own rounds have shown.

        A pace that differs from the known one by a tenth of that or less stays as it is. Once there
        is one, the pace of a site without one is not known.
        """

        def as_known(site: str, pace: float) -> float:
            known = self._paces.get(site, pace)
            return known if abs(pace - known) <= NEWS * known else pace

        with self._lock:
            self._paces = {site: as_known(site, pace) for site, pace in paces.items()}

    def share_out(self, share: Share, *, without: Collection[str] = ()) -> dict[str, Share]:
        """Deal clients to open sites not in `without`, by vnodes; empty if there is none."""
        if not (open_ := [each for each in self._open_capacities() if each.name not in without]):
            return {}
        return {site: its for site, its in shared_out(share, open_).items() if its}

    def leave_alone(self, sites: Collection[str]) -> None:
        """Let these sites, and no others, keep their clients and get no new ones."""
        with self._lock:
            before, self._left_alone = self._left_alone, frozenset(sites)
            changed = sorted(before ^ self._left_alone)
        for site in changed:
            self._tell(site)

    def _all_are_there(self) -> bool:
        """Whether no client's site is absent."""
        return all(site in self.promises for site, share in self.assignment.shares.items() if share)

    def _capacities(self) -> list[SiteCapacity]:
        promises, paces = self.promises, self._paces
        usual = None if paces.keys() & promises.keys() else self._pace
        return [
            SiteCapacity(
                promise.site,
                promise.vnodes,
                paces.get(promise.site, usual),
                promise.link,
                pace_measured=promise.site in paces,
            )
            for promise in promises.values()
        ]

    def _open_capacities(self) -> list[SiteCapacity]:
        return [each for each in self._capacities() if each.name not in self._left_alone]
