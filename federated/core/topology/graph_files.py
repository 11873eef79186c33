"""Graphs from files: an adjacency matrix, a list of edges, or GraphML.

The ending of a file's name says which: `.csv` is a matrix, `.graphml` is GraphML, all others are
lists of edges.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import ParseError

import numpy as np
import numpy.typing as npt

from .edges import Edges

Floats = npt.NDArray[np.float64]


class NotAGraph(Exception):
    """A file that holds no graph of a run's clients; users see the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class WeightedEdges:
    """Edges, and the weight of each."""

    edges: Edges
    weights: Floats
    """(m,), finite and not negative; 1 where the file has none."""


class _Edge(NamedTuple):
    where: str
    source: str
    receiver: str
    weight: float


def read_graph(path: Path, clients: Sequence[str]) -> WeightedEdges:
    """The graph in a file, whose nodes are clients: by their ids, or by numbers from 0.

    In a matrix the entry of row i and column j is the weight of the edge from i to j; 0 is none.
    A line of a list is an edge in both directions: two nodes and perhaps a weight, separated by
    commas or blanks. Edges from a node to itself count for nothing. Raises NotAGraph with the line.
    """
    try:
        found, directed = _read(path, clients)
    except OSError as error:
        raise NotAGraph(f"it cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise NotAGraph(f"it cannot be read: {error}") from error
    place_of = _places(found, clients)
    weights: dict[tuple[int, int], float] = {}
    for where, source, receiver, weight in found:
        of, to = place_of[source], place_of[receiver]
        if not (math.isfinite(weight) and weight >= 0):
            raise NotAGraph(f"{where}: the weight {weight:g} is negative or not finite")
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
    return WeightedEdges(edges, np.array(list(weights.values()), dtype=np.float64)[order])


def _read(path: Path, clients: Sequence[str]) -> tuple[list[_Edge], bool]:
    """Edges in the order of the file, and whether they are directed."""
    match path.suffix.lower():
        case ".csv":
            return list(_of_matrix(path.read_text(encoding="utf-8"), clients)), True
        case ".graphml":
            return _of_graphml(path)
        case _:
            return list(_of_lines(path.read_text(encoding="utf-8"))), False


def _of_matrix(text: str, clients: Sequence[str]) -> Iterator[_Edge]:
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if len(rows) != len(clients):
        raise NotAGraph(
            f"{len(rows)} rows for {len(clients)} clients (a matrix has no line of names)"
        )
    for number, (row, source) in enumerate(zip(rows, clients, strict=True), 1):
        where = f"row {number}"
        if len(row) != len(clients):
            raise NotAGraph(f"{where}: {len(row)} entries for {len(clients)} clients")
        for entry, receiver in zip(row, clients, strict=True):
            if weight := _weight(entry, where):
                yield _Edge(where, source, receiver, weight)


def _of_lines(text: str) -> Iterator[_Edge]:
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].strip()
        parts = said.split(",") if "," in said else said.split()
        where = f"line {number}"
        if not said:
            continue
        if len(parts) not in (2, 3):
            raise NotAGraph(f"{where}: {said[:60]!r} is not two nodes and perhaps a weight")
        source, receiver, *weight = (part.strip() for part in parts)
        yield _Edge(where, source, receiver, _weight(weight[0], where) if weight else 1.0)


def _of_graphml(path: Path) -> tuple[list[_Edge], bool]:
    import networkx as nx

    try:
        graph: Any = nx.read_graphml(path)
    except (ParseError, nx.NetworkXException, ValueError, KeyError, TypeError) as error:
        raise NotAGraph(f"it is no GraphML: {error}") from error
    found = []
    for source, receiver, content in graph.edges(data=True):
        where = f"the edge from {source} to {receiver}"
        weight = _weight(str(content.get("weight", 1.0)), where)
        found.append(_Edge(where, str(source), str(receiver), weight))
    return found, bool(graph.is_directed())


def _weight(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise NotAGraph(f"{where}: {text[:60]!r} is not a number") from None


def _places(found: Sequence[_Edge], clients: Sequence[str]) -> Mapping[str, int]:
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
