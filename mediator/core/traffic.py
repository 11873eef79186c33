"""How many bytes cross a site's boundary, by round, site, direction and purpose; how many may.

A budget is judged before something is sent, on what was booked until then and what was promised to
those who are under way. Whoever asks first never goes beyond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
class Crossing:
    """Bytes that cross one site's boundary, by direction."""

    to_site: int = 0
    from_site: int = 0

    @property
    def total(self) -> int:
        """Both directions."""
        return self.to_site + self.from_site

    def __add__(self, other: Crossing) -> Crossing:
        return Crossing(
            to_site=self.to_site + other.to_site, from_site=self.from_site + other.from_site
        )


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
        """Whether there is any limit."""
        return (self.round_bytes, self.run_bytes, self.site_bytes) != (None, None, None)

    @property
    def tightest(self) -> tuple[str, int] | None:
        """The smallest limit, which no site's part of a round may exceed; None without any."""
        limits = [
            (allowed, limit)
            for limit in ("round_bytes", "run_bytes", "site_bytes")
            if (allowed := getattr(self, limit)) is not None
        ]
        return min(limits)[::-1] if limits else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverBudget:
    """Why something is not sent."""

    limit: str
    """`round_bytes`, `run_bytes` or `site_bytes`."""
    allowed: int
    spent: int
    asked: int
    site: str
    """Whose limit it is; empty where it is that of all sites together."""
    round_number: int

    def __str__(self) -> str:
        where = {
            "round_bytes": f"round {self.round_number}",
            "run_bytes": "the run",
            "site_bytes": f"site {self.site}",
        }[self.limit]
        return (
            f"the traffic budget of {where} is {self.allowed} bytes: {self.spent} are spent, and "
            f"{self.asked} more were wanted; raise traffic.{self.limit}, or send less"
        )


class Spending:
    """What of a budget is spent: what has crossed, and what was promised to those under way."""

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
        """Count what may cross for a site in the round that is under way, until `settle`."""
        self._promised[site] += nbytes

    def settle(self) -> None:
        """What was promised has crossed, and is booked, or never will."""
        self._promised.clear()

    def refuses(self, round_number: int, asked: Mapping[str, int]) -> OverBudget | None:
        """Whether these bytes, by site, may cross together; the first limit that they would break.

        They are what is sent now and what is to come back for it.
        """
        budget, promised = self._budget, self._promised.total()
        total = sum(asked.values())
        judged = [
            ("round_bytes", budget.round_bytes, self._rounds[round_number] + promised, total, ""),
            ("run_bytes", budget.run_bytes, self._run + promised, total, ""),
            *(
                ("site_bytes", budget.site_bytes, self._sites[s] + self._promised[s], asked[s], s)
                for s in sorted(asked)
            ),
        ]
        for limit, allowed, spent, more, site in judged:
            if allowed is not None and spent + more > allowed:
                return OverBudget(
                    limit=limit,
                    allowed=allowed,
                    spent=spent,
                    asked=more,
                    site=site,
                    round_number=round_number,
                )
        return None
