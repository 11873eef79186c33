"""Whether what one node learns can reach all others."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx

from .edges import Edges


def components(edges: Edges) -> list[list[int]]:
    """The parts whose nodes all reach each other, the largest first; one if it is connected."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(edges.nodes))
    graph.add_edges_from(zip(edges.sources.tolist(), edges.receivers.tolist(), strict=True))
    found = [sorted(part) for part in nx.strongly_connected_components(graph)]
    return sorted(found, key=lambda part: (-len(part), part[0]))


def in_words(parts: Sequence[Sequence[str]], shown: int = 3) -> str:
    """The parts of a graph that is not connected, by the names of some of their nodes."""

    def part(names: Sequence[str]) -> str:
        more = f" and {len(names) - shown} more" if len(names) > shown else ""
        return f"{', '.join(names[:shown])}{more}"

    rest = f"; and {len(parts) - shown} more parts" if len(parts) > shown else ""
    return "; ".join(map(part, parts[:shown])) + rest
