"""Decides when a site's link counts as slow.

A link is slow once its transfers of one round have taken `SLOW_S` and at least half of the time
since the round first used it. It is reported once, and again when that time changes by a quarter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SLOW_S = 10.0
"""Shorter transfers of a round are not reported."""
SHARE = 0.5
"""Nor are transfers that took a smaller part of the time since the round first used the link."""
NEWS = 1.25
"""The factor of change, up or down, after which a link is reported again."""


@dataclass(frozen=True, slots=True)
class LinkUse:
    """The bytes that crossed a site's link for one round, and how long they took."""

    round_number: int
    site: str
    nbytes: int = 0
    seconds: float = 0.0

    def __add__(self, other: LinkUse) -> LinkUse:
        nbytes, seconds = self.nbytes + other.nbytes, self.seconds + other.seconds
        return replace(self, nbytes=nbytes, seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """A report of a slow link."""

    site: str
    round_number: int
    seconds: float
    """For the transfers of one round."""
    bytes_per_second: float


class LinkWatch:
    """The links of one run."""

    def __init__(self, round_bytes: int) -> None:
        """`round_bytes` cross each site's link in a round: a model to it, a sum from it."""
        self._round_bytes = round_bytes
        self._rounds: dict[str, tuple[LinkUse, float]] = {}
        """By site: the use by its newest round, and when that use began."""
        self._said: dict[str, float] = {}

    def used(self, use: LinkUse, now: float) -> SlowLink | None:
        """Count bytes that crossed a link for a round; return a report if one is due."""
        before, began = self._rounds.get(use.site, (None, 0.0))
        if before is not None and use.round_number < before.round_number:
            return None  # the remainder of an earlier round
        if before is None or use.round_number > before.round_number:
            before, began = LinkUse(use.round_number, use.site), now - use.seconds
        total = before + use
        self._rounds[use.site] = total, began
        if total.seconds < SLOW_S or total.seconds < SHARE * (now - began) or not total.nbytes:
            return None
        rate = total.nbytes / total.seconds
        takes_s = max(total.seconds, self._round_bytes / rate)
        said = self._said.get(use.site)
        if said is not None and said / NEWS < takes_s < said * NEWS:
            return None
        self._said[use.site] = takes_s
        return SlowLink(
            site=use.site, round_number=use.round_number, seconds=takes_s, bytes_per_second=rate
        )
