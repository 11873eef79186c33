"""Bytes across sites' boundaries: counted by round, site, direction and purpose, and limited.

Limits are checked before anything is sent: what has crossed, what orders under way may still cost,
and what is asked for now stay within them together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum


class Direction(StrEnum):
    """Seen from the coordinator."""

    TO_SITE = "to_site"
    FROM_SITE = "from_site"


@dataclass(frozen=True, slots=True, order=True)
class Flow:
    """What a number of bytes is booked under."""

    round_number: int
    site: str
    direction: Direction
    purpose: str


class TrafficLedger:
    """Bytes per flow; the tensors' bytes, which is what a link would carry but for headers."""

    def __init__(self) -> None:
        self._bytes: Counter[Flow] = Counter()

    def book(self, flow: Flow, nbytes: int) -> None:
        """Add bytes to a flow."""
        self._bytes[flow] += nbytes

    def rows(self) -> list[tuple[Flow, int]]:
        """All flows with their bytes, sorted."""
        return sorted(self._bytes.items())

    def drain(self) -> list[tuple[Flow, int]]:
        """The rows since the last drain; the ledger starts anew."""
        rows = self.rows()
        self._bytes.clear()
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """Bytes across one site's boundary, by direction."""

    to_site: int = 0
    from_site: int = 0

    @property
    def total(self) -> int:
        """Both directions."""
        return self.to_site + self.from_site

    def __add__(self, other: Volume) -> Volume:
        return Volume(
            to_site=self.to_site + other.to_site, from_site=self.from_site + other.from_site
        )

    def __or__(self, other: Volume) -> Volume:
        """The larger of both in each direction."""
        return Volume(
            to_site=max(self.to_site, other.to_site), from_site=max(self.from_site, other.from_site)
        )


@dataclass(frozen=True, slots=True)
class Limit:
    """A rule on bytes, what counts against it already, and what is asked for now."""

    name: str
    """The key that sets it: `round_bytes` of a run's budget, `bytes_per_day.to_site` of a site."""
    span: str
    """What it is about, in words: `round 2`, `site oslo`, `today`."""
    allowed: int | None
    """None is no limit."""
    spent: int
    asked: int

    @property
    def broken(self) -> bool:
        """Whether less is left than is asked for."""
        return self.allowed is not None and self.spent + self.asked > self.allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most that a run may send and get, in bytes; None is no limit."""

    round_bytes: int | None = None
    """Of all sites together in one round, both directions."""
    run_bytes: int | None = None
    """Of all sites together in the whole run, both directions."""
    site_bytes: int | None = None
    """Of any one site in the whole run, both directions."""

    @property
    def limits_anything(self) -> bool:
        return self.tightest is not None

    @property
    def tightest(self) -> tuple[str, int] | None:
        """The smallest limit, which no site's part of a round may exceed; None without any."""
        limits = [(most, name) for name, most in asdict(self).items() if most is not None]
        return min(limits)[::-1] if limits else None


class BudgetUse:
    """What of a run's budget has crossed, and what orders under way may still cost."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._run = 0
        self._rounds: Counter[int] = Counter()
        self._sites: Counter[str] = Counter()
        self._promised: Counter[str] = Counter()

    def book(self, rows: Iterable[tuple[Flow, int]], *, earlier: bool = False) -> None:
        """Count what has crossed; in an `earlier` attempt, for the run and its sites only."""
        for flow, nbytes in rows:
            self._run += nbytes
            self._sites[flow.site] += nbytes
            if not earlier:
                self._rounds[flow.round_number] += nbytes

    def promise(self, site: str, nbytes: int) -> None:
        """Count what may cross for a site in the current round, until `settle`."""
        self._promised[site] += nbytes

    def settle(self) -> None:
        """What was promised has crossed, and is booked, or never will."""
        self._promised.clear()

    def refuses(self, round_number: int, asked: Mapping[str, int]) -> Limit | None:
        """The first limit that these bytes, by site, would break together; None if they may cross.

        They are what is sent now and what comes back for it.
        """
        budget, promised, total = self._budget, self._promised.total(), sum(asked.values())
        limits = [
            Limit(
                "round_bytes",
                f"round {round_number}",
                budget.round_bytes,
                self._rounds[round_number] + promised,
                total,
            ),
            Limit("run_bytes", "the run", budget.run_bytes, self._run + promised, total),
        ]
        for site, more in sorted(asked.items()):
            spent = self._sites[site] + self._promised[site]
            limits.append(Limit("site_bytes", f"site {site}", budget.site_bytes, spent, more))
        return next((each for each in limits if each.broken), None)


def over_budget(limit: Limit) -> str:
    """Why a run's budget has no more to send, and what to do."""
    return (
        f"the traffic budget of {limit.span} is {limit.allowed} bytes: {limit.spent} are spent, "
        f"and {limit.asked} more were wanted; raise traffic.{limit.name}, or send less"
    )
