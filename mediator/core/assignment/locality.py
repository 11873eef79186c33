"""`locality`: clients that exchange with each other lie at one site, as far as its vnodes allow.

No way of cutting a graph is the best for all: METIS loses to the plain order of clients on a ring
with shortcuts, and misses communities as large as the sites. So several are tried, and the cheapest
is taken: by the seconds of a round, where the sites' links are known, and otherwise by the edges
between sites.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from .costs import Prices
from .cuts.by_links import apart, around, lean, slow_links
from .cuts.communities import by_communities
from .cuts.graph_cuts import Adjacency, by_bisection, by_metis, crossing, in_order, refined, within
from .cuts.timed import TimedRound, mapped, refined as refined_in_time
from .records import AssignmentProblem, Division, SiteCapacity
from .room import LEAST, Room
from .shares import members

Indices = npt.NDArray[np.int64]
WORTH_REFINING = 1.25
"""Cuts of up to so many times the least edges, or seconds, are refined, which takes seconds on
large graphs."""
MOST_REFINED = 2
"""At most so many of them are."""
MOST_EDGES = 5_000_000
"""Graphs with more edges are divided in the order of their clients: METIS would take minutes."""


def locality(problem: AssignmentProblem) -> Division:
    """Make a round short, each site within 5 % of its part by vnodes and paces.

    Without links, that is to cut the fewest edges. Pinned clients stay; a site that has many of
    them gets fewer others. Without an exchange, clients are divided in their order.
    """
    room = Room.of(problem)
    free, sites, goal, most = room.free, room.sites, room.goal, room.most
    graph = _graph_of(problem, free, [site.name for site in sites])
    timed = _Timed.of(problem, free, sites)
    parts, reason = (
        _fewest_edges(graph, goal, most) if timed is None else timed.shortest(graph, goal, most)
    )
    return room.division(parts, reason)


def _fewest_edges(graph: Adjacency, goal: Indices, most: Indices) -> tuple[Indices, str]:
    """Parts, and why these."""
    tried = {way: within(graph, parts, most) for way, parts in _ways(graph, goal, most)}
    cuts = {way: crossing(graph, parts) for way, parts in tried.items()}
    ranked = sorted(cuts, key=lambda way: cuts[way])
    enough = cuts[ranked[0]] * WORTH_REFINING
    for way in [way for way in ranked[:MOST_REFINED] if cuts[way] <= enough]:
        tried[way] = refined(graph, tried[way], most)
        cuts[way] = crossing(graph, tried[way])
    best = min(cuts, key=lambda way: cuts[way])
    if not graph.edges:
        return tried[best], ""
    others = ", ".join(f"{way} {cut:,}" for way, cut in cuts.items() if way != best)
    compared = f" ({others})" if others else ""
    return tried[best], f"dividing by {best} cuts {cuts[best]:,} of {graph.edges:,} edges{compared}"


def _ways(graph: Adjacency, goal: Indices, most: Indices) -> Iterator[tuple[str, Indices]]:
    yield "their order", in_order(goal)
    if 0 < graph.edges <= MOST_EDGES and np.count_nonzero(goal) > 1:
        yield "k-way METIS", by_metis(graph, goal, recursive=False)
        communities = by_communities(graph, most)
        yield "communities", communities
        yield "recursive METIS", by_bisection(graph, goal, crossing(graph, communities))


@dataclass(frozen=True, slots=True, eq=False)
class _Timed:
    """A round's seconds, by the parts of the clients that may move."""

    round: TimedRound
    """Of the clients at sites that are there."""
    places: Indices
    """(clients,): those of pinned clients."""
    free: npt.NDArray[np.bool_]

    @classmethod
    def of(
        cls, problem: AssignmentProblem, free: Indices, sites: list[SiteCapacity]
    ) -> Self | None:
        """None if a round's seconds do not depend on the cut, as far as is known."""
        exchange, work, prices = problem.exchange, problem.work, Prices.of(sites)
        if exchange is None or work is None or not len(free):
            return None
        stay = [members(problem.pinned.get(site.name, ())) for site in sites]
        there = np.sort(np.concatenate([free, *stay]))
        ends = exchange.ends[np.isin(exchange.ends, there).all(axis=1)]
        among = replace(exchange, ends=np.searchsorted(there, ends))
        if work.samples is not None:
            work = replace(work, samples=work.samples[there])
        timed = TimedRound.of(len(there), among, prices, work)
        if not timed.model_prices.any() or not len(ends):
            return None
        places = np.zeros(len(there), dtype=np.int64)
        for place, pinned in enumerate(stay):
            places[np.searchsorted(there, pinned)] = place
        return cls(timed, places, np.isin(there, free, assume_unique=True))

    def shortest(self, graph: Adjacency, goal: Indices, most: Indices) -> tuple[Indices, str]:
        """Parts by which a round takes the fewest seconds, as far as is tried, and why these."""
        least = -(-goal // LEAST)
        tried: dict[str, Indices] = {}
        seconds: dict[str, float] = {}
        for way, parts in self._ways(graph, goal, least, most):
            within_limits = self._placed(within(graph, parts, most))
            places = mapped(self.round, within_limits, self.free, least, most)
            tried[way], seconds[way] = places, self.round.seconds(places)
        ranked = sorted(seconds, key=lambda way: seconds[way])
        enough = seconds[ranked[0]] * WORTH_REFINING
        for way in [way for way in ranked[:MOST_REFINED] if seconds[way] <= enough]:
            tried[way] = refined_in_time(self.round, tried[way], self.free, least, most)
            seconds[way] = self.round.seconds(tried[way])
        best = min(seconds, key=lambda way: seconds[way])
        others = ", ".join(f"{way} {takes:.3g}" for way, takes in seconds.items() if way != best)
        compared = f" ({others})" if others else ""
        reason = f"dividing by {best} makes a round take {seconds[best]:.3g} s{compared}"
        return tried[best][self.free], reason

    def _placed(self, parts: Indices) -> Indices:
        places = self.places.copy()
        places[self.free] = parts
        return places

    def _ways(
        self, graph: Adjacency, goal: Indices, least: Indices, most: Indices
    ) -> Iterator[tuple[str, Indices]]:
        prices = self.round.model_prices
        if not len(slow := slow_links(goal, prices)):
            yield from _ways(graph, goal, most)
            return
        yield "their order", in_order(goal)
        if 0 < graph.edges <= MOST_EDGES and np.count_nonzero(goal) > 1:
            few = lean(goal, least, most, prices)
            yield "k-way METIS", by_metis(graph, goal, recursive=False)
            yield "slow links first", apart(graph, goal, slow)
            yield "slow links first with fewer clients", apart(graph, few, slow)
            yield "what is near to a client", around(graph, few, slow)


def _graph_of(problem: AssignmentProblem, free: Indices, names: list[str]) -> Adjacency:
    """The exchange among movable clients, and of each with the pinned ones of each site."""
    exchange = problem.exchange
    ends = np.empty((0, 2), np.int64) if exchange is None else exchange.pairs.ends
    drawn = np.zeros((len(free), len(names)), dtype=np.int64)
    inside = np.isin(ends, free)
    for place, name in enumerate(names):
        pinned = members(problem.pinned.get(name, ()))
        for one, other in ((0, 1), (1, 0)):
            here = inside[:, one] & np.isin(ends[:, other], pinned)
            np.add.at(drawn[:, place], np.searchsorted(free, ends[here, one]), 1)
    both = ends[inside.all(axis=1)]
    return Adjacency.of(len(free), np.searchsorted(free, both), drawn)
