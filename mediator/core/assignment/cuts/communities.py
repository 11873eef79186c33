"""Parts that are made of communities: vertices with more edges to each other than to the rest.

METIS fills parts of given sizes, step by step, and at no step mends a community that an earlier one
has cut. So the graph is cut into many small pieces first, and it is pieces that are gathered into
communities, of any size (Blondel et al. 2008, "Fast unfolding of communities in large networks").
Each vertex then moves to the community of most of its neighbors, and communities are packed into
the parts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from .graph_cuts import Adjacency, by_metis, refined

Indices = npt.NDArray[np.int64]
PIECES = 128
"""Of 100,000 vertices in eight planted communities, 64 pieces are enough."""


def by_communities(graph: Adjacency, most: Indices) -> Indices:
    """Parts of whole communities, as far as they fit into the limits (parts,).

    The same on every machine with one version of METIS and of networkx.
    """
    found = _communities(graph)
    sizes, room = np.bincount(found), most.copy()
    place = np.zeros(len(sizes), dtype=np.int64)
    for community in np.argsort(-sizes, kind="stable").tolist():
        size = sizes[community]
        fits = np.flatnonzero(room >= size)
        part = int(fits[room[fits].argmin()]) if len(fits) else int(room.argmax())
        place[community] = part
        room[part] -= size
    return place[found]


def _communities(graph: Adjacency) -> Indices:
    """(n,): the community of each vertex."""
    import networkx as nx

    pieces = np.arange(graph.vertices)
    if graph.vertices > PIECES:
        pieces = by_metis(graph, np.ones(PIECES, dtype=np.int64), recursive=True, tries=1)
    count = min(PIECES, graph.vertices)
    between = np.bincount(
        pieces[graph.owners] * count + pieces[graph.neighbors], minlength=count**2
    )
    gathered = nx.community.louvain_communities(
        nx.from_numpy_array(between.reshape(count, count)), seed=0
    )
    community = np.zeros(count, dtype=np.int64)
    for number, members in enumerate(gathered):
        community[sorted(members)] = number
    unlimited = np.full(len(gathered), graph.vertices)
    alone = replace(graph, drawn=np.zeros((graph.vertices, len(gathered)), dtype=np.int64))
    return refined(alone, community[pieces], unlimited)
