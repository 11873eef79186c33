"""Clients in proportion to the sites' vnodes, in contiguous ranges (largest remainder)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .records import SiteCapacity


def assign(clients: int, sites: Sequence[SiteCapacity]) -> Mapping[str, range]:
    """Share `clients` out by vnodes; ties go to the site that sorts first."""
    ranges: dict[str, range] = {}
    start = 0
    for site, count in counts(clients, {site.name: site.vnodes for site in sites}).items():
        ranges[site] = range(start, start + count)
        start += count
    return ranges


def counts(number: int, weights: Mapping[str, int]) -> dict[str, int]:
    """A number in proportion to weights, each part exact to within one; by name."""
    names = sorted(weights)
    total = sum(weights.values())
    parts = {name: number * weights[name] // total for name in names}
    by_remainder = sorted(names, key=lambda name: (-(number * weights[name] % total), name))
    for name in by_remainder[: number - sum(parts.values())]:
        parts[name] += 1
    return parts
