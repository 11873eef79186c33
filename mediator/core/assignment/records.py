"""What assignment strategies are given and what they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SiteCapacity:
    """A site as an assignment sees it."""

    name: str
    vnodes: int


class AssignmentStrategy(Protocol):
    """A rule that shares a population out among sites."""

    def __call__(
        self, population: int, sites: Sequence[SiteCapacity], /
    ) -> Mapping[str, range]: ...


@dataclass(frozen=True, slots=True)
class Assignment:
    """Every client's site, and why."""

    strategy: str
    ranges: Mapping[str, range]
    """Disjoint, and together `range(population)`."""

    def site_of(self, index: int) -> str:
        """The site of a client; IndexError outside the population."""
        for site, indices in self.ranges.items():
            if index in indices:
                return site
        raise IndexError(index)

    def explain(self, index: int) -> str:
        """Why this client is where it is."""
        site = self.site_of(index)
        total = sum(len(indices) for indices in self.ranges.values())
        return (
            f"strategy {self.strategy!r} gave site {site} {len(self.ranges[site])} of {total} "
            f"clients, this one among them"
        )
