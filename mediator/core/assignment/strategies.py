"""Strategies: each divides the movable clients among sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .records import AssignmentStrategy, NotAssignable, SiteCapacity


def capacity(clients: int, sites: Sequence[SiteCapacity]) -> Mapping[str, range]:
    """Give contiguous ranges in proportion to vnodes (largest remainder; ties by name)."""
    ranges: dict[str, range] = {}
    start = 0
    for site, count in proportional(clients, {site.name: site.vnodes for site in sites}).items():
        ranges[site] = range(start, start + count)
        start += count
    return ranges


def round_robin(clients: int, sites: Sequence[SiteCapacity]) -> Mapping[str, range]:
    """Give client i to the (i mod n)-th site by name, regardless of size."""
    names = sorted(site.name for site in sites)
    return {name: range(i, clients, len(names)) for i, name in enumerate(names)}


def pinned(clients: int, sites: Sequence[SiteCapacity]) -> Mapping[str, range]:
    """Give no site any client; NotAssignable if there are clients without data at a site."""
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
    """Divide a number in proportion to weights, each part exact to within one, sorted by name."""
    names = sorted(weights)
    total = sum(weights.values())
    parts = {name: number * weights[name] // total for name in names}
    by_remainder = sorted(names, key=lambda name: (-(number * weights[name] % total), name))
    for name in by_remainder[: number - sum(parts.values())]:
        parts[name] += 1
    return parts
