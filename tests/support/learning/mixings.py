"""Mixing matrices as the tests look at them: rows, columns, all of it."""

from __future__ import annotations

import numpy as np

from fedpilot.federated.core.state import Array
from fedpilot.federated.core.topology.mixing import UNIT, Mixing


def row(mixing: Mixing, node: int) -> dict[int, int]:
    """By source, the weight of its state in a node's mixture."""
    part = slice(int(mixing.starts[node]), int(mixing.starts[node + 1]))
    return dict(zip(mixing.sources[part].tolist(), mixing.weights[part].tolist(), strict=True))


def dense(mixing: Mixing) -> Array:
    """(nodes, nodes): the weights as fractions."""
    matrix = np.zeros((mixing.nodes, mixing.nodes))
    for node in range(mixing.nodes):
        for source, weight in row(mixing, node).items():
            matrix[node, source] = weight / UNIT
    return matrix


def columns(mixing: Mixing) -> list[int]:
    """The sum of each node's weights in all mixtures."""
    sums = np.zeros(mixing.nodes, dtype=np.int64)
    np.add.at(sums, mixing.sources, mixing.weights)
    return sums.tolist()
