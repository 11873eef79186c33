"""Decides which site holds the replica of another site's clients' states, and says why.

A replica crosses two links: up from its owner, and down to its holder. The cheapest holder with
room gets it. What it already gets from others counts against its link and its room. An unknown
link counts as free, as in `costs`; of equal holders the next one by name gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedpilot.common.text.amounts import brief, in_bytes, listed

from ...links import LinkSpeed
from ..costs import Prices
from ..records import SiteCapacity


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSite:
    """A site, as far as replicas are concerned."""

    capacity: SiteCapacity
    nbytes: int
    """Of its clients' states; 0 if it has no clients."""
    room: int | None = None
    """Bytes that it has left; None if that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Where a site's replica goes."""

    site: str | None
    """None if no site can hold it."""
    nbytes: int
    reason: str


def holders(sites: Sequence[ReplicaSite]) -> dict[str, Holder]:
    """The holder of each site's replica, for each site that has clients; the largest choose first.

    The result does not depend on the order of `sites`.
    """
    there = sorted(sites, key=_name)
    prices = Prices.of([site.capacity for site in there])
    taken = [0] * len(there)
    found: dict[str, Holder] = {}
    for owner in sorted(range(len(there)), key=lambda at: (-there[at].nbytes, at)):
        if not (size := there[owner].nbytes):
            continue
        others = [at for at in range(len(there)) if at != owner]
        ranked: list[tuple[float, int, int, int]] = []
        for at in others:
            room = there[at].room
            if room is None or taken[at] + size <= room:
                down = (taken[at] + size) * prices.byte_down[at]
                trips = prices.round_trip[owner] + prices.round_trip[at]
                seconds = float(size * prices.byte_up[owner] + down + trips)
                ranked.append((seconds, taken[at], (at - owner) % len(there), at))
        name = _name(there[owner])
        if not ranked:
            left = [f"{_name(there[at])} {in_bytes(_left(there[at], taken[at]))}" for at in others]
            reason = f"no site has room for {in_bytes(size)}; left are {listed(left)}"
            reason = reason if others else "there is no other site"
            found[name] = Holder(site=None, nbytes=size, reason=reason)
            continue
        seconds, *_, best = min(ranked)
        taken[best] += size
        reason = _why(seconds, there[best], len(ranked), len(others))
        found[name] = Holder(site=_name(there[best]), nbytes=size, reason=reason)
    return dict(sorted(found.items()))


def _why(seconds: float, best: ReplicaSite, fit: int, others: int) -> str:
    if others == 1:
        return "the only other site"
    if fit == 1:
        return "the only one with room"
    if best.capacity.link == LinkSpeed():
        return "its link is not known and counts as free"
    return f"the cheapest link, {brief(seconds)}"


def _name(site: ReplicaSite) -> str:
    return site.capacity.name


def _left(site: ReplicaSite, taken: int) -> int:
    return max(0, (site.room or 0) - taken)
