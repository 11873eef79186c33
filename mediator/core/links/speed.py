"""How fast a site's link is, and whether that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Self

MOST = 1e18
"""No amount of a link is as large."""
NEWS = 0.1
MEASURED_AT: Mapping[str, str] = MappingProxyType(
    {"up": "up_measured_at", "down": "down_measured_at"}
)
"""The speeds of a link, and where each has the time of its measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """The link between a site and the mediator; None where something is not known.

    A speed without the time of a measurement was declared. Times are epoch seconds.
    """

    up: float | None = None
    """Bytes per second from the site."""
    down: float | None = None
    """Bytes per second to the site."""
    round_trip_s: float | None = None
    """As the latest heartbeats measured it."""
    up_measured_at: float | None = None
    down_measured_at: float | None = None

    @property
    def has_speed(self) -> bool:
        """Whether a speed is known, and not just the round trip."""
        return self.up is not None or self.down is not None

    def or_else(self, other: LinkSpeed) -> LinkSpeed:
        """This link, with each figure that is not known here as in the other."""
        mine, theirs = asdict(self), asdict(other)
        for name, *time in (*MEASURED_AT.items(), ("round_trip_s",)):
            if mine[name] is None:
                mine |= {each: theirs[each] for each in (name, *time)}
        return LinkSpeed(**mine)

    def is_news_to(self, known: LinkSpeed) -> bool:
        """Whether a speed differs from the one that is known by more than a tenth of that."""
        for name in MEASURED_AT:
            here, there = getattr(self, name), getattr(known, name)
            if (here is None) != (there is None):
                return True
            if here is not None and abs(here - there) > NEWS * there:
                return True
        return False

    def to_json(self) -> dict[str, float]:
        """What is known."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def told(cls, values: Any) -> Self:
        """What a site says of its link; nonsense counts as not known."""
        found = values if isinstance(values, Mapping) else {}
        return cls(**{name: _positive(found.get(name)) for name in (*MEASURED_AT, "round_trip_s")})

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """What a mediator says of a site's link, times included; nonsense is not known."""
        found = values if isinstance(values, Mapping) else {}
        told = asdict(cls.told(found))
        for name, time in MEASURED_AT.items():
            told[time] = None if told[name] is None else _positive(found.get(time))
        return cls(**told)


def _positive(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < MOST else None
