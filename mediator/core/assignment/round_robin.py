"""Clients to the sites in turn, whatever their size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .records import SiteCapacity


def assign(clients: int, sites: Sequence[SiteCapacity]) -> Mapping[str, range]:
    """Client i goes to the (i mod n)-th site in the order of names."""
    names = sorted(site.name for site in sites)
    return {name: range(i, clients, len(names)) for i, name in enumerate(names)}
