"""Merges our requests to Ray's autoscaler with those of other programs.

Ray keeps one request for the whole cluster, and each new one replaces it. If the present one is
what we wrote last, the others' part is unchanged; otherwise all of it is theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDemand:
    """The last request to Ray's autoscaler."""

    others: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    """Our previous part, which Ray still has if the manager died before it wrote `ours`."""

    @property
    def all(self) -> tuple[str, ...]:
        """The whole request as written to Ray."""
        return self.others + self.ours


def merged(there: Sequence[str], last: PublishedDemand, ours: Sequence[str]) -> PublishedDemand:
    """The next request, given the one at Ray, the last one that we wrote, and our new part."""
    left_by_us = (sorted(last.all), sorted(last.others + last.before))
    others = last.others if sorted(there) in left_by_us else tuple(there)
    return PublishedDemand(others=others, ours=tuple(ours), before=last.ours)
