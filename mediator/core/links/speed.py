"""How fast a site's link is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """The link between a site and the mediator; None where something is not known."""

    up: float | None = None
    """Bytes per second from the site."""
    down: float | None = None
    """Bytes per second to the site."""
    round_trip_s: float | None = None
