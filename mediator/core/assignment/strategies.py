"""Strategies: each divides the movable clients among sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .data_affinity import data_affinity
from .locality import locality
from .proportions import proportional
from .records import (
    AssignmentProblem,
    AssignmentStrategy,
    Division,
    NotAssignable,
    SiteCapacity,
)
from .shares import dealt, size


def capacity(problem: AssignmentProblem) -> Division:
    """Give clients in their order, in proportion to vnodes (largest remainder; ties by name)."""
    places = in_proportion(size(problem.clients), problem.sites)
    return Division(shares=dealt(problem.clients, places))


def in_proportion(clients: int, sites: Sequence[SiteCapacity]) -> Mapping[str, range]:
    """Divide so many clients into contiguous ranges in proportion to vnodes."""
    ranges: dict[str, range] = {}
    start = 0
    for site, count in proportional(clients, {site.name: site.vnodes for site in sites}).items():
        ranges[site] = range(start, start + count)
        start += count
    return ranges


def round_robin(problem: AssignmentProblem) -> Division:
    """Give client i to the (i mod n)-th site by name, regardless of size."""
    names, clients = sorted(site.name for site in problem.sites), size(problem.clients)
    places = {name: range(i, clients, len(names)) for i, name in enumerate(names)}
    return Division(shares=dealt(problem.clients, places))


def pinned(problem: AssignmentProblem) -> Division:
    """Give no site any client; NotAssignable if there are clients without data at a site."""
    if clients := size(problem.clients):
        raise NotAssignable(
            f"strategy 'pinned' wants every client's data to be at a site, and {clients} clients "
            "have none; choose 'capacity' or 'round_robin' for those"
        )
    return Division(shares={site.name: () for site in problem.sites})


STRATEGIES: Mapping[str, AssignmentStrategy] = {
    "capacity": capacity,
    "data_affinity": data_affinity,
    "locality": locality,
    "round_robin": round_robin,
    "pinned": pinned,
}
