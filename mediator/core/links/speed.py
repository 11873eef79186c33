"""How fast a site's link is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

MOST = 1e18
"""No amount of a link is as large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """The link between a site and the mediator; None where something is not known."""

    up: float | None = None
    """Bytes per second from the site."""
    down: float | None = None
    """Bytes per second to the site."""
    round_trip_s: float | None = None

    def to_json(self) -> dict[str, float]:
        """What is known."""
        known = {"up": self.up, "down": self.down, "round_trip_s": self.round_trip_s}
        return {name: value for name, value in known.items() if value is not None}

    @classmethod
    def told(cls, values: Any) -> Self:
        """What a site says of its link; nonsense counts as not known."""
        found = values if isinstance(values, Mapping) else {}
        return cls(**{name: _positive(found.get(name)) for name in ("up", "down", "round_trip_s")})


def _positive(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < MOST else None
