"""The bytes that clients on a graph move beside the round's model and sum.

Before each mixing step a client's model crosses once to each other site whose clients take it.
Where clients' own models are evaluated, sites answer with two counts for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedpilot.mediator.core.traffic import Volume

from ..population.sampling import Indices
from ..population.shares import Share, held
from ..topology.edges import Edges

COUNTS = 16
"""Bytes of a client's counts: how many samples, and how many of them are right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeCosts:
    """What a graph's clients exchange."""

    graph: Callable[[int], Edges]
    """By round number."""
    model: int
    """Bytes of a client's model, with its weight if it has one."""
    steps: int
    """Mixing steps of a round."""
    evaluated: Callable[[int], Indices]
    """By round number, the clients whose own models are evaluated."""

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
        moved = {
            site: Volume(to_site=self.steps * each.to_site, from_site=self.steps * each.from_site)
            for site, each in self.of_step(round_number, shares, headers).items()
        }
        evaluated = self.evaluated(round_number)
        for site, share in shares.items():
            if count := int(np.count_nonzero(held(evaluated, share))):
                answer = COUNTS * count + headers
                moved[site] += Volume(to_site=headers, from_site=answer)
        return moved
