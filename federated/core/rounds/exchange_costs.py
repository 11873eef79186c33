"""The bytes that clients on a graph move beside the round's model and sum.

Before each mixing step a client's model crosses once to each other site whose clients take it, or
partial sums take the place of models (`core.topology.covers`). Where clients' own models are
evaluated, sites answer with two counts for each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np

from fedpilot.mediator.core.traffic import Volume

from ..population.sampling import Indices
from ..population.shares import Share, held
from ..state import Roles, State, averaged, counters, nbytes
from ..topology.covers import Cover, CoverOf, CrossingSizes
from ..topology.edges import Edges

COUNTS = 16
"""Bytes of a client's counts: how many samples, and how many of them are right."""
EXCHANGE_FORMAT = 2
"""Of the exchange between sites: in 1 only models cross, those of absent clients too."""


def crossing_sizes(initial: State, roles: Roles, *, pushes: bool) -> CrossingSizes:
    """What a model and a partial sum of models take on a wire, without headers.

    A sum has eight bytes a number, one number for each tensor's largest move, and the counters.
    """
    summed, weight = averaged(roles), 8 if pushes else 0
    counted = nbytes(initial[name] for name in counters(roles))
    numbers = sum(initial[name].size for name in summed)
    return CrossingSizes(
        state=nbytes(initial[name] for name in summed) + counted + weight,
        partial=8 * (numbers + len(summed)) + counted + weight,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Crossings:
    """What crosses between places in a mixing step, (places, places) each: from one to another."""

    states: Indices
    sums: Indices

    def nbytes(self, sizes: CrossingSizes) -> Indices:
        """(places, places)"""
        found: Indices = self.states * sizes.state + self.sums * sizes.partial
        return found


def crossings(
    sources: Indices, receivers: Indices, places: Indices, many: int, cover: CoverOf
) -> Crossings:
    """What crosses for some edges (m,), with (nodes,) the place of each node among so many."""
    of, to = places[sources], places[receivers]
    apart = of != to
    # All pairs of places at once: an end is a node, and the place at the other end.
    found = cover(sources[apart] * many + to[apart], receivers[apart] * many + of[apart])
    ways = [
        np.bincount(each, minlength=many * many).reshape(many, many)
        for each in (
            places[found.states // many] * many + found.states % many,
            found.sums % many * many + places[found.sums // many],
        )
    ]
    return Crossings(*ways)


def states_alone(sources: Indices, _targets: Indices) -> Cover:
    """The cover of edges to or from a site that knows no partial sums."""
    return Cover.of_states(sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeCosts:
    """What a graph's clients exchange."""

    graph: Callable[[int], Edges]
    """By round number."""
    sizes: CrossingSizes
    cover: CoverOf
    """The cheapest for these sizes."""
    steps: int
    """Mixing steps of a round."""
    evaluated: Callable[[int], Indices]
    """By round number, the clients whose own models are evaluated."""

    def crossings(
        self,
        round_number: int,
        shares: Mapping[str, Share],
        absent: Indices | None = None,
        older: Collection[str] = (),
    ) -> Crossings:
        """What crosses between sites, in the order of their shares, without absent clients.

        To and from `older` sites only states cross, those of absent clients too.
        """
        edges, many = self.graph(round_number), len(shares)
        places = np.full(edges.nodes, -1)
        for number, share in enumerate(shares.values()):
            for clients in share:
                places[clients.start : clients.stop : clients.step] = number
        sources, receivers = edges.sources, edges.receivers
        old = np.array([site in older for site in shares] + [False])  # the last: nowhere
        alone = old[places[sources]] | old[places[receivers]]
        there = np.ones(edges.nodes, dtype=bool)
        if absent is not None:
            there[absent] = False
        placed = (places[sources] >= 0) & (places[receivers] >= 0)
        covered = placed & ~alone & there[sources] & there[receivers]
        alone &= placed
        first = crossings(sources[covered], receivers[covered], places, many, self.cover)
        if not alone.any():
            return first
        rest = crossings(sources[alone], receivers[alone], places, many, states_alone)
        return Crossings(first.states + rest.states, first.sums + rest.sums)

    def of_step(
        self,
        round_number: int,
        shares: Mapping[str, Share],
        headers: int = 0,
        absent: Indices | None = None,
        older: Collection[str] = (),
    ) -> dict[str, Volume]:
        """What each site moves for one mixing step; `headers` are those of an order."""
        moved = self.crossings(round_number, shares, absent, older).nbytes(self.sizes)
        given, taken = moved.sum(axis=1).tolist(), moved.sum(axis=0).tolist()
        # It is asked to give, told to take for each other site, and asked to mix.
        around = headers * (2 * (len(shares) - 1) + 1)
        return {
            site: Volume(to_site=taken[number] + around, from_site=given[number] + around)
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
