"""Clients in proportion to the sites' vnodes, in contiguous ranges (largest remainder)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .records import SiteCapacity


def assign(population: int, sites: Sequence[SiteCapacity]) -> Mapping[str, range]:
    """Share `population` out by vnodes; ties go to the site that sorts first."""
    ordered = sorted(sites, key=lambda site: site.name)
    total = sum(site.vnodes for site in ordered)
    counts = [population * site.vnodes // total for site in ordered]
    remainders = [population * site.vnodes % total for site in ordered]
    by_remainder = sorted(range(len(ordered)), key=lambda i: (-remainders[i], ordered[i].name))
    for i in by_remainder[: population - sum(counts)]:
        counts[i] += 1
    ranges: dict[str, range] = {}
    start = 0
    for site, count in zip(ordered, counts, strict=True):
        ranges[site.name] = range(start, start + count)
        start += count
    return ranges
