"""Bytes across sites' boundaries: counted by round, site, direction and purpose, and limited.

A limit is checked before sending. It covers the bytes that crossed, those that orders under way may
still cost, and those requested now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum


class Direction(StrEnum):
    """As seen from the coordinator."""

    TO_SITE = "to_site"
    FROM_SITE = "from_site"


@dataclass(frozen=True, slots=True, order=True)
class Flow:
    """The key under which bytes are booked."""

    round_number: int
    site: str
    direction: Direction
    purpose: str


class TrafficLedger:
    """Bytes per flow."""

    def __init__(self) -> None:
        self._bytes: Counter[Flow] = Counter()

    def book(self, flow: Flow, nbytes: int) -> None:
        """Add bytes to a flow."""
        self._bytes[flow] += nbytes

    def rows(self) -> list[tuple[Flow, int]]:
        """All flows with their bytes, sorted."""
        return sorted(self._bytes.items())

    def drain(self) -> list[tuple[Flow, int]]:
        """Return the rows since the last drain, and clear them."""
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
        return self.to_site + self.from_site

    def __add__(self, other: Volume) -> Volume:
        return Volume(
            to_site=self.to_site + other.to_site, from_site=self.from_site + other.from_site
        )

    def __or__(self, other: Volume) -> Volume:
        """The maximum in each direction."""
        return Volume(
            to_site=max(self.to_site, other.to_site), from_site=max(self.from_site, other.from_site)
        )


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on bytes, with the bytes spent so far and those requested now."""

    name: str
    """The key in a run's budget (`round_bytes`) or a site's policy (`bytes_per_day.to_site`)."""
    span: str
    """Its scope in words: `round 2`, `site oslo`, `today`."""
    allowed: int | None
    """None is no limit."""
    spent: int
    asked: int

    @property
    def broken(self) -> bool:
        """Whether `asked` exceeds the rest."""
        return self.allowed is not None and self.spent + self.asked > self.allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The bytes that a run may send and receive; None is no limit."""

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
        """The name and size of the smallest limit, which no site's part of a round may exceed."""
        limits = [(most, name) for name, most in asdict(self).items() if most is not None]
        return min(limits)[::-1] if limits else None


class BudgetUse:
    """The used part of a run's budget, and the bytes that orders under way may still cost."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._run = 0
        self._rounds: Counter[int] = Counter()
        self._sites: Counter[str] = Counter()
        self._promised: Counter[str] = Counter()

    def book(self, rows: Iterable[tuple[Flow, int]], *, earlier: bool = False) -> None:
        """Count bytes that crossed; those of an `earlier` attempt count for no round."""
        for flow, nbytes in rows:
            self._run += nbytes
            self._sites[flow.site] += nbytes
            if not earlier:
                self._rounds[flow.round_number] += nbytes

    def promise(self, site: str, nbytes: int) -> None:
        """Count bytes that may cross for a site in the current round, until `settle`."""
        self._promised[site] += nbytes

    def settle(self) -> None:
        """Drop the promises: their bytes are booked, or will never cross."""
        self._promised.clear()

    def refuses(self, round_number: int, asked: Mapping[str, int]) -> Limit | None:
        """The first limit that these bytes (by site, both directions) would break, or None."""
        budget, promised, total = self._budget, self._promised.total(), sum(asked.values())
        in_round, span = self._rounds[round_number] + promised, f"round {round_number}"
        limits = [
            Limit("round_bytes", span, budget.round_bytes, in_round, total),
            Limit("run_bytes", "the run", budget.run_bytes, self._run + promised, total),
        ]
        for site, more in sorted(asked.items()):
            spent = self._sites[site] + self._promised[site]
            limits.append(Limit("site_bytes", f"site {site}", budget.site_bytes, spent, more))
        return next((each for each in limits if each.broken), None)


def over_budget(limit: Limit) -> str:
    """Say why a run's budget is spent, and what to do."""
    return (
        f"the traffic budget of {limit.span} is {limit.allowed} bytes: {limit.spent} are spent, "
        f"and {limit.asked} more were wanted; raise traffic.{limit.name}, or send less"
    )
