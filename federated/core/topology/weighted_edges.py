"""WeightedEdges: edges between named clients, as a file or a function gives them, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .edges import Edges

Floats = npt.NDArray[np.float64]


class NotAGraph(Exception):
    """What holds no graph of a run's clients; users see the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class WeightedEdges:
    """Edges, and the weight of each."""

    edges: Edges
    weights: Floats
    """(m,), finite and not negative; 1 where nothing says another one."""
    loops: int = 0
    """Edges from a node to itself, which count for nothing."""


class NamedEdge(NamedTuple):
    """An edge between clients that are named by their ids or numbers."""

    where: str
    """For messages."""
    source: str
    receiver: str
    weight: float


def weighted_edges(
    found: Sequence[NamedEdge], clients: Sequence[str], *, directed: bool
) -> WeightedEdges:
    """Edges whose nodes are clients, by their ids or by numbers from 0; raises NotAGraph.

    An edge of weight 0, or from a node to itself, counts for nothing.
    """
    place_of = _places(found, clients)
    weights: dict[tuple[int, int], float] = {}
    loops = 0
    for where, source, receiver, weight in found:
        of, to = place_of[source], place_of[receiver]
        if not (math.isfinite(weight) and weight >= 0):
            raise NotAGraph(f"{where}: the weight {weight:g} is negative or not finite")
        loops += of == to
        if of == to or weight == 0:
            continue
        for edge in ((to, of),) if directed else ((to, of), (of, to)):
            if weights.setdefault(edge, weight) != weight:
                both = f"{weights[edge]:g} and {weight:g}"
                raise NotAGraph(
                    f"{where}: the edge between {source} and {receiver} has two weights, {both}"
                )
    ends = np.array(list(weights), dtype=np.int64).reshape(-1, 2)
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    edges = Edges.of(len(clients), ends[:, 0], ends[:, 1])
    return WeightedEdges(edges, np.array(list(weights.values()), dtype=np.float64)[order], loops)


def _places(found: Sequence[NamedEdge], clients: Sequence[str]) -> Mapping[str, int]:
    """The place of each node among the clients, by its id or else by its number."""
    where: dict[str, str] = {}
    for edge in found:
        where.setdefault(edge.source, edge.where)
        where.setdefault(edge.receiver, edge.where)
    by_id = {client: place for place, client in enumerate(clients)}
    strangers = [name for name in where if name not in by_id]
    if not strangers:
        return by_id
    by_number = {str(place): place for place in range(len(clients))}
    if all(name in by_number for name in where):
        return by_number
    name = next((each for each in strangers if each not in by_number), strangers[0])
    raise NotAGraph(
        f"{where[name]}: no client is called {name[:60]!r}; clients are {clients[0]} to "
        f"{clients[-1]}, or 0 to {len(clients) - 1}"
    )
