"""What Ray's autoscaler is asked for: our part, beside what others have asked for.

Ray keeps one request for the whole cluster, and each request replaces it. So it is read first: if
it is what we left, the others' part is as it was; otherwise another program has replaced it, and
all of it is theirs. Requests are compared as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDemand:
    """What Ray's autoscaler was asked for last."""

    others: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    """Our part before that, which is still there if we died just then."""

    @property
    def all(self) -> tuple[str, ...]:
        """What is there once it has been written."""
        return self.others + self.ours


def merged(there: Sequence[str], last: PublishedDemand, ours: Sequence[str]) -> PublishedDemand:
    """Say what to ask for, now that this is there and our part is to be that."""
    left_by_us = (sorted(last.all), sorted(last.others + last.before))
    others = last.others if sorted(there) in left_by_us else tuple(there)
    return PublishedDemand(others=others, ours=tuple(ours), before=last.ours)
