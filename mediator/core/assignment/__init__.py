"""Which site a VirtualNode belongs to: one strategy per file, pure, explaining every choice.

Residency first: a client whose data is at a site stays there. The others are shared out by a
strategy, which gives each site a `range` of them, so that an assignment costs the same for ten
clients and for a million, and a site can tell its own without being sent a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from . import capacity, pinned as all_pinned, round_robin
from .moving import reassigned, rebalanced, shared_out
from .records import Assignment, AssignmentStrategy, ClientMove, NotAssignable, SiteCapacity
from .shares import Share, dealt, joined, rest, size

STRATEGIES: Mapping[str, AssignmentStrategy] = {
    "capacity": capacity.assign,
    "round_robin": round_robin.assign,
    "pinned": all_pinned.assign,
}


def assign(
    strategy: str,
    population: int,
    sites: Sequence[SiteCapacity],
    pinned: Mapping[str, Sequence[range]] | None = None,
) -> Assignment:
    """Clients to where their data is, and the others by a strategy; KeyError for an unknown one.

    `pinned` are contiguous ranges of clients by site, also of sites that are not there; ValueError
    where they overlap or leave the population, NotAssignable if the strategy leaves clients out.
    """
    stay = {site: joined(ranges) for site, ranges in sorted((pinned or {}).items()) if ranges}
    free = rest(population, [each for share in stay.values() for each in share])
    movable = dealt(free, STRATEGIES[strategy](size(free), sites))
    return Assignment(
        strategy=strategy,
        movable=movable,
        pinned=stay,
        given={site: size(share) for site, share in movable.items()},
    )


__all__ = [
    "STRATEGIES",
    "Assignment",
    "AssignmentStrategy",
    "ClientMove",
    "NotAssignable",
    "Share",
    "SiteCapacity",
    "assign",
    "joined",
    "reassigned",
    "rebalanced",
    "shared_out",
    "size",
]
