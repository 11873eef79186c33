"""How many bytes crossed a site's boundary, by round, site, direction and purpose."""

from __future__ import annotations

from collections import Counter
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
