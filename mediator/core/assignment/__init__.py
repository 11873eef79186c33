"""Which site a VirtualNode belongs to: one strategy per file, pure, explaining every choice.

An assignment gives each site a `range` of client indices, so that it costs the same for ten
clients and for a million, and a site can tell its own without being sent a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from . import capacity, round_robin
from .records import Assignment, AssignmentStrategy, SiteCapacity

STRATEGIES: Mapping[str, AssignmentStrategy] = {
    "capacity": capacity.assign,
    "round_robin": round_robin.assign,
}


def assign(strategy: str, population: int, sites: Sequence[SiteCapacity]) -> Assignment:
    """Apply a strategy by name; KeyError if there is none of that name."""
    return Assignment(strategy, STRATEGIES[strategy](population, sites))


__all__ = ["STRATEGIES", "Assignment", "AssignmentStrategy", "SiteCapacity", "assign"]
