"""How much of a round a site's link takes, and when that is worth a word to whoever waits.

The mediator measures how long bytes take; what is decided here is when a link counts as slow: once
its transfers of one round have taken `SLOW_S`, and at least half of the time since the round began
to use it. It is said once, and again when a quarter is between what was said and what is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SLOW_S = 10.0
"""Transfers of a round that take less are not spoken of."""
SHARE = 0.5
"""Nor are those beside which a site works for longer."""
NEWS = 1.25
"""A link is spoken of again when a round's transfers take so many times longer, or shorter."""


@dataclass(frozen=True, slots=True)
class LinkUse:
    """Bytes that crossed a site's link for one round, and the seconds that they took."""

    round_number: int
    site: str
    nbytes: int = 0
    seconds: float = 0.0

    def __add__(self, other: LinkUse) -> LinkUse:
        return replace(
            self, nbytes=self.nbytes + other.nbytes, seconds=self.seconds + other.seconds
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """What is said of a link."""

    site: str
    round_number: int
    seconds: float
    """What the transfers of a round take over it."""
    bytes_per_second: float


class LinkWatch:
    """The links of one run."""

    def __init__(self, round_bytes: int) -> None:
        """`round_bytes` cross each site's link in a round: a model to it, a sum from it."""
        self._round_bytes = round_bytes
        self._rounds: dict[str, tuple[LinkUse, float]] = {}
        """By site: what its newest round has used, and when that began."""
        self._said: dict[str, float] = {}

    def used(self, use: LinkUse, now: float) -> SlowLink | None:
        """More of a round's bytes have crossed a link; what to say of it, if anything."""
        before, began = self._rounds.get(use.site, (None, 0.0))
        if before is not None and use.round_number < before.round_number:
            return None  # the rest of a round that is over
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
            site=use.site,
            round_number=use.round_number,
            seconds=takes_s,
            bytes_per_second=rate,
        )
