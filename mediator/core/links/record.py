"""What is known of a site's link: what its admin declares, and what was measured since."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from ..traffic import Direction
from .meter import LinkMeter
from .round_trips import LONGEST_S
from .speed import LinkSpeed


@dataclass(slots=True)
class LinkRecord:
    """One site's link, as the mediator knows it; times are epoch seconds."""

    declared: LinkSpeed = field(default_factory=LinkSpeed)
    _meters: dict[Direction, LinkMeter] = field(
        default_factory=lambda: {each: LinkMeter() for each in Direction}
    )
    _round_trip_s: float | None = None

    def set_out(self, direction: Direction, blob: Hashable, now: float) -> None:
        """Record that a blob starts across the link."""
        self._meters[direction].set_out(blob, now)

    def moved(self, direction: Direction, nbytes: int, now: float) -> None:
        """Count bytes of blobs that crossed the link."""
        self._meters[direction].moved(nbytes, now)

    def arrived(self, blob: Hashable, now: float) -> None:
        """Record that a blob has arrived at its end, or is not sent any more."""
        for meter in self._meters.values():
            meter.arrived(blob, now)

    def broken(self) -> None:
        """Record that the link was cut."""
        for meter in self._meters.values():
            meter.broken()

    def round_trip(self, seconds: float) -> None:
        """Take the round trip that the site has measured; an impossible one counts for nothing."""
        if 0 < seconds <= LONGEST_S:
            self._round_trip_s = seconds

    def known(self, now: float) -> LinkSpeed:
        """Each speed as measured, or as declared if no measurement is fresh; the round trip."""
        up = self._meters[Direction.FROM_SITE].speed(now) or (None, None)
        down = self._meters[Direction.TO_SITE].speed(now) or (None, None)
        measured = LinkSpeed(
            up=up[0],
            up_measured_at=up[1],
            down=down[0],
            down_measured_at=down[1],
            round_trip_s=self._round_trip_s,
        )
        return measured.or_else(self.declared)
