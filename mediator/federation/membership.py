"""SiteMembership: which sites take part in a federation, and which clients each site has.

Other sites get a lost site's movable clients at once. A site that came back gets clients bit by
bit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..core.assignment import (
    Assignment,
    Share,
    SiteCapacity,
    assign,
    reassigned,
    rebalanced,
    shared_out,
    size,
)
from ..core.reservation import Promise, SiteQuorum
from ..errors import AnswerUnreadable, RunnersSpent, SiteUnreachable


class ChangeKind(StrEnum):
    """How a site's membership changed."""

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


class SiteMembership:
    """The sites of one federation; all methods may be called from any thread."""

    def __init__(
        self,
        sites: Iterable[str],
        *,
        strategy: str,
        replacement: bool,
        tell: Callable[[str], None],
    ) -> None:
        """`tell` gets each site that changed; it is called without the lock."""
        self._known = tuple(sites)
        self._strategy = strategy
        self.replacement = replacement
        """Whether other sites get a lost site's clients that may move."""
        self._tell = tell
        self._lock = threading.Lock()
        self._quorum = SiteQuorum(to_begin=len(self._known))
        self._formed = False
        """Whether there is a gang."""
        self._assignment: Assignment | None = None
        self._gone: dict[str, str] = {}
        """Why each site that was lost or drained takes no part."""
        self._returning: set[str] = set()
        """Returned sites that may still lack clients."""
        self._left_alone: frozenset[str] = frozenset()
        """Sites that get nothing new."""
        self._spent: dict[str, str] = {}
        """Sites where the run's processes died too often."""
        self._changes: list[Change] = []
        self.distrusted: dict[str, str] = {}
        """Why the answers of each of these sites cannot be believed."""
        self.promises: Mapping[str, Promise] = {}
        """What each site holds; replaced as a whole."""
        self.closed = False
        """Whether the federation has ended, and takes no orders any more."""

    # -- the gang ---------------------------------------------------------------------------------

    def require(self, quorum: SiteQuorum) -> None:
        """Need these sites from now on."""
        self._quorum = quorum

    def form(self, promises: Mapping[str, Promise]) -> None:
        """There is a gang from now on: these sites hold it."""
        self._formed, self.promises = True, promises

    def end(self) -> None:
        """No site takes part any more, for good."""
        with self._lock:
            self.closed = True
            self._formed, self.promises = False, {}

    def know(self, site: str) -> None:
        """Know one more site, which takes no part yet."""
        if site not in self._known:
            self._known = (*self._known, site)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that hold a part of the gang; before there is one, all."""
        return tuple(self.promises) if self._formed else self._known

    @property
    def excluded(self) -> Mapping[str, str]:
        """The sites that take no part any more in this run, and why."""
        return {**self._spent, **self.distrusted}

    def lacking(self) -> str | None:
        """What keeps the gang from working, in words: too few sites, or a required one."""
        if not self._formed:
            return None
        return self._quorum.lacking(self.promises, known=self._known, gone=self._gone)

    def too_few_to_begin(self) -> bool:
        """Whether the sites that are there are not enough to begin with."""
        return len(self.promises) < self._quorum.to_begin or self.lacking() is not None

    def hopeless(self) -> bool:
        """Whether no site that may return could make up a gang."""
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

        Other sites get its clients that may move from `round_number` on. The orders that it is at
        work on are left to their callers.
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
        """Go on without a site for good: what it answers cannot be believed."""
        self.distrusted[site] = reason
        self.remove(site, reason, round_number=round_number)

    def give_up(
        self, site: str, error: SiteUnreachable | AnswerUnreadable, *, round_number: int = 0
    ) -> None:
        """Go on without a site that failed with this error.

        For good if its answers cannot be believed, or if its processes died too often.
        """
        if isinstance(error, RunnersSpent):
            self._spent[site] = error.reason
        if isinstance(error, SiteUnreachable):
            self.remove(site, error.reason, round_number=round_number)
        else:
            self.distrust(site, str(error), round_number=round_number)

    def spend(self, site: str, reason: str) -> None:
        """Exclude a site that takes no part: the run's processes died there too often."""
        self._spent[site] = self._gone[site] = reason
        self._tell(site)

    def may_start(self, site: str) -> bool:
        """Whether another process may be started for this run at a site."""
        return site not in self._spent

    def restore(self, site: str, promise: Promise) -> None:
        """A site holds its part of the gang again."""
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
        """The sites that went or came back since the last time, in that order."""
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
        self, population: int, pinned: Mapping[str, Sequence[range]] | None = None
    ) -> Assignment:
        """Give every client of the population its site; `pinned` ones the site of their data."""
        self._assignment = assign(self._strategy, population, self._capacities(), pinned)
        return self._assignment

    def rebalance(self, at_most: float, *, round_number: int = 0) -> None:
        """Give returned sites some of the clients they lack: at most that part of all movable."""
        with self._lock:
            for site in sorted(self._returning - self._left_alone):
                before = self.assignment
                self._assignment = rebalanced(
                    before, site, self._capacities(), at_most, round_number=round_number
                )
                if self._assignment is before:
                    self._returning.discard(site)

    def share_out(self, share: Share, *, without: Collection[str] = ()) -> dict[str, Share]:
        """Deal clients out to sites in proportion to their vnodes; empty if none may get any.

        Sites that are left alone, or among `without`, get nothing.
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
            self._tell(site)

    def _capacities(self) -> list[SiteCapacity]:
        return [SiteCapacity(p.site, p.vnodes) for p in self.promises.values()]

    def _open_capacities(self) -> list[SiteCapacity]:
        """Of those that may get something new."""
        return [each for each in self._capacities() if each.name not in self._left_alone]
