"""Room: how many of the clients that may move each site may have, and the division of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from .costs import Prices
from .proportions import proportional
from .records import AssignmentProblem, Division, SiteCapacity
from .shares import Share, members, share_of, size

Indices = npt.NDArray[np.int64]
BALANCE = 0.05
"""How far above its part by vnodes and paces a site's number of clients may be."""
LEAST = 2
"""A site with a slow link keeps one client of so many in its part."""
PACES = 1_000_000
"""Sites' speeds are whole parts of the fastest one's."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Room:
    """The clients that may move, and the limits of the sites, which are sorted by name."""

    free: Indices
    """(k,): ascending."""
    sites: list[SiteCapacity]
    goal: Indices
    """(sites,): each site's part of them, so that with its pinned clients it has its whole part."""
    most: Indices
    """(sites,)"""

    @classmethod
    def of(cls, problem: AssignmentProblem) -> Self:
        free = members(problem.clients)
        sites = sorted(problem.sites, key=lambda site: site.name)
        goal, most = limits(sites, len(free), problem.pinned)
        return cls(free=free, sites=sites, goal=goal, most=most)

    def division(self, parts: Indices, reason: str) -> Division:
        """The division by the place of each client's site, (k,)."""
        shares = {site.name: share_of(self.free[parts == at]) for at, site in enumerate(self.sites)}
        return Division(shares=shares, reason=reason)


def limits(
    sites: Sequence[SiteCapacity], free: int, pinned: Mapping[str, Share]
) -> tuple[Indices, Indices]:
    """(sites,) each: sites' parts of so many clients that may move, and the most they may have."""
    speeds = _speeds(sites)
    stay = {name: size(pinned.get(name, ())) for name in speeds}
    wanted = proportional(free + sum(stay.values()), speeds)
    room = {name: max(0, wanted[name] - stay[name]) for name in speeds}
    counts = proportional(free, room if sum(room.values()) else speeds)
    goal = np.array([counts[site.name] for site in sites], dtype=np.int64)
    most = np.maximum(goal, np.floor(goal * (1 + BALANCE)).astype(np.int64))
    most[goal == 0] = 0
    return goal, most


def _speeds(sites: Sequence[SiteCapacity]) -> dict[str, int]:
    """How many clients a site trains while others train theirs: vnodes, over paces if known."""
    if not any(site.vnodes for site in sites):
        return {site.name: 1 for site in sites}
    if all(site.seconds_per_sample is None for site in sites):
        return {site.name: site.vnodes for site in sites}
    sample = Prices.of(sites).sample
    fastest = sample[sample > 0].min(initial=np.inf)
    return {
        site.name: round(PACES * fastest / each) if site.vnodes and each else 0
        for site, each in zip(sites, sample.tolist(), strict=True)
    }
