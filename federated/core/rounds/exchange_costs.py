"""The bytes that clients' models move between sites, where neighbors on a graph are apart.

Before each mixing step a client's model crosses once to each other site whose clients take it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedpilot.mediator.core.traffic import Volume

from ..population.shares import Share
from ..topology.edges import Edges


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeCosts:
    """What a graph's clients exchange."""

    graph: Callable[[int], Edges]
    """By round number."""
    model: int
    """Bytes of a client's model, with its weight if it has one."""
    steps: int
    """Mixing steps of a round."""

    def of_step(
        self, round_number: int, shares: Mapping[str, Share], headers: int = 0
    ) -> dict[str, Volume]:
        """What each site moves for one mixing step; `headers` are those of an order."""
        edges, others = self.graph(round_number), len(shares) - 1
        places = np.zeros(edges.nodes, dtype=np.int64)
        for number, share in enumerate(shares.values()):
            for clients in share:
                places[clients.start : clients.stop : clients.step] = number
        sources, to = edges.crossings(places)
        given = np.bincount(places[sources], minlength=len(shares)).tolist()
        taken = np.bincount(to, minlength=len(shares)).tolist()
        # It is asked to give, told to take for each other site, and asked to mix.
        around = headers * (2 * others + 1)
        return {
            site: Volume(
                to_site=taken[number] * self.model + around,
                from_site=given[number] * self.model + around,
            )
            for number, site in enumerate(shares)
        }

    def of_round(
        self, round_number: int, shares: Mapping[str, Share], headers: int = 0
    ) -> dict[str, Volume]:
        """What each site moves for all mixing steps of a round."""
        return {
            site: Volume(to_site=self.steps * each.to_site, from_site=self.steps * each.from_site)
            for site, each in self.of_step(round_number, shares, headers).items()
        }
