"""No client moves: each belongs to the site that declares its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .records import NotAssignable, SiteCapacity


def assign(clients: int, sites: Sequence[SiteCapacity]) -> Mapping[str, range]:
    """Nobody is left to be given a site; NotAssignable if somebody is."""
    if clients:
        raise NotAssignable(
            f"strategy 'pinned' wants every client's data to be at a site, and {clients} clients "
            "have none; choose 'capacity' or 'round_robin' for those"
        )
    return {site.name: range(0) for site in sites}
