"""Strategies: each shares the clients that may move out among sites, and explains its choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .records import AssignmentStrategy, NotAssignable, SiteCapacity


def capacity(clients: int, sites: Sequence[SiteCapacity]) -> Mapping[str, range]:
    """Contiguous ranges in proportion to vnodes (largest remainder); ties go by name."""
    ranges: dict[str, range] = {}
    start = 0
    for site, count in proportional(clients, {site.name: site.vnodes for site in sites}).items():
        ranges[site] = range(start, start + count)
        start += count
    return ranges


def round_robin(clients: int, sites: Sequence[SiteCapacity]) -> Mapping[str, range]:
    """Client i goes to the (i mod n)-th site in the order of names, whatever the sites' sizes."""
    names = sorted(site.name for site in sites)
    return {name: range(i, clients, len(names)) for i, name in enumerate(names)}


def pinned(clients: int, sites: Sequence[SiteCapacity]) -> Mapping[str, range]:
    """No client moves: each belongs to the site that declares its data. NotAssignable if any."""
    if clients:
        raise NotAssignable(
            f"strategy 'pinned' wants every client's data to be at a site, and {clients} clients "
            "have none; choose 'capacity' or 'round_robin' for those"
        )
    return {site.name: range(0) for site in sites}


STRATEGIES: Mapping[str, AssignmentStrategy] = {
    "capacity": capacity,
    "round_robin": round_robin,
    "pinned": pinned,
}


def proportional(number: int, weights: Mapping[str, int]) -> dict[str, int]:
    """A number in proportion to weights, each part exact to within one; by name."""
    names = sorted(weights)
    total = sum(weights.values())
    parts = {name: number * weights[name] // total for name in names}
    by_remainder = sorted(names, key=lambda name: (-(number * weights[name] % total), name))
    for name in by_remainder[: number - sum(parts.values())]:
        parts[name] += 1
    return parts
