"""How many bytes cross a site's boundary, by round, site, direction and purpose; how many may.

A budget is judged before something is sent, on what was booked until then. It never goes beyond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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
class Budget:
    """The most that a run may send and get, in bytes; None is no limit."""

    round_bytes: int | None = None
    """Of all sites together in one round, both directions."""
    run_bytes: int | None = None
    """Of all sites together in the whole run, both directions."""
    site_bytes: int | None = None
    """Of any one site in the whole run, both directions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverBudget:
    """Why something is not sent."""

    limit: str
    """`round_bytes`, `run_bytes` or `site_bytes`."""
    allowed: int
    spent: int
    asked: int
    site: str
    round_number: int

    def __str__(self) -> str:
        where = {
            "round_bytes": f"round {self.round_number}",
            "run_bytes": "the run",
            "site_bytes": f"site {self.site}",
        }[self.limit]
        return (
            f"the traffic budget of {where} is {self.allowed} bytes: {self.spent} are spent, and "
            f"{self.asked} more were to cross the boundary of site {self.site}; raise "
            f"traffic.{self.limit}, or send less"
        )


class Spending:
    """What of a budget is spent."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._run = 0
        self._rounds: Counter[int] = Counter()
        self._sites: Counter[str] = Counter()

    def book(self, rows: Iterable[tuple[Flow, int]]) -> None:
        """Count what has crossed."""
        for flow, nbytes in rows:
            self._run += nbytes
            self._rounds[flow.round_number] += nbytes
            self._sites[flow.site] += nbytes

    def refuses(self, round_number: int, asked: Iterable[tuple[str, int]]) -> OverBudget | None:
        """Whether these bytes, by site, may cross together; the first limit that they would break.

        They are what is sent now and what is to come back for it.
        """
        total, by_site = 0, Counter[str]()
        for site, nbytes in asked:
            total += nbytes
            by_site[site] += nbytes
            for limit, allowed, spent, more in (
                ("round_bytes", self._budget.round_bytes, self._rounds[round_number], total),
                ("run_bytes", self._budget.run_bytes, self._run, total),
                ("site_bytes", self._budget.site_bytes, self._sites[site], by_site[site]),
            ):
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
