"""Graphs between similar nodes: in one part, as many edges, and the most alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.topology.connectivity import components
from fedpilot.federated.core.topology.edges import Edges
from fedpilot.federated.core.topology.graphs import GraphOptions, TopologyName, topology
from fedpilot.federated.core.topology.similarity import similar


def before(nodes: int, degree: int = 4) -> Edges:
    name = TopologyName.K_CONNECTED if nodes > degree else TopologyName.RING
    return topology(name, nodes, GraphOptions(degree=degree), 0).of_round(1)


HISTOGRAMS = st.integers(2, 20).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=n, max_size=n)
)


@given(HISTOGRAMS, st.integers(0, 100))
def test_it_is_in_one_part_with_no_more_edges_than_before(rows: list[list[int]], seed: int) -> None:
    edges = before(len(rows))
    found = similar(edges, np.array(rows), seed)
    assert len(components(found)) == 1
    assert found.is_symmetric
    assert len(found) <= max(len(edges), 2 * (len(rows) - 1))
    assert found.digest == similar(edges, np.array(rows), seed).digest


def test_nodes_of_one_label_are_neighbors() -> None:
    labels = np.arange(40) % 4
    histograms = np.eye(4, dtype=np.int64)[labels] * 30
    found = similar(before(40), histograms, 0)
    across = labels[found.receivers] != labels[found.sources]
    assert 2 * 3 <= across.sum() <= 2 * 8, "what connects four groups, of 160"
    assert found.received.max() <= 6


@pytest.mark.parametrize("scale", [1, 7])
def test_shares_count_and_not_samples(scale: int) -> None:
    histograms = np.array([[2, 0], [0, 2], [2, 0], [0, 2]]) * [[1], [1], [scale], [scale]]
    found = similar(before(4), histograms, 0)
    pairs = set(zip(found.receivers.tolist(), found.sources.tolist(), strict=True))
    assert {(0, 2), (1, 3)} <= pairs


def test_equal_nodes_form_no_star() -> None:
    found = similar(before(60), np.ones((60, 3), dtype=np.int64), 0)
    assert found.received.max() < 12
