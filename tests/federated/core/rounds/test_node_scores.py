"""How good the nodes of a graph are: means of real numbers, the same in any order."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.rounds.node_scores import (
    NodesEvaluated,
    node_scores,
    nodes_evaluated,
    samples_evaluated,
)

COUNTS = st.lists(
    st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1
)


def scores_of(counts: list[tuple[int, int]]) -> tuple[float, float]:
    correct, samples = np.array(counts, dtype=np.int64).reshape(-1, 2).T
    found = node_scores(correct, samples)
    return found.mean, found.worst_tenth


@given(COUNTS, st.randoms())
def test_scores_do_not_depend_on_the_order_of_the_nodes(
    counts: list[tuple[int, int]], random: Random
) -> None:
    shuffled = random.sample(counts, len(counts))
    assert scores_of(shuffled) == scores_of(counts)


@given(COUNTS)
def test_scores_are_the_means_of_all_and_of_the_worst_tenth(counts: list[tuple[int, int]]) -> None:
    ascending = sorted(Fraction(right, samples) for right, samples in counts)
    worst = ascending[: math.ceil(len(counts) / 10)]
    mean, tenth = scores_of(counts)
    assert mean == pytest.approx(float(sum(ascending) / len(ascending)), rel=1e-15)
    assert tenth == pytest.approx(float(sum(worst) / len(worst)), rel=1e-15)


@pytest.mark.parametrize(
    ("counts", "worst"),
    [
        pytest.param([(1, 2)], 0.5, id="one node is its own worst tenth"),
        pytest.param([(n, 20) for n in range(10)], 0.0, id="one of ten"),
        pytest.param([(n, 20) for n in range(11)], 0.025, id="two of eleven"),
        pytest.param([(0, 0), (3, 4)], 0.75, id="a node without samples does not count"),
    ],
)
def test_the_worst_tenth_is_rounded_up(counts: list[tuple[int, int]], worst: float) -> None:
    assert scores_of(counts)[1] == worst


def test_nodes_without_any_samples_have_no_scores() -> None:
    assert all(map(math.isnan, scores_of([(0, 0)])))


def test_the_sampled_nodes_and_samples_are_the_seeds() -> None:
    sampled = NodesEvaluated.SAMPLED
    nodes, samples = nodes_evaluated(sampled, 1000, 3), samples_evaluated(sampled, 10_000, 3)
    assert (len(nodes), len(samples)) == (32, 512)
    assert (np.diff(nodes) > 0).all()
    assert (np.diff(samples) > 0).all()
    assert nodes.tolist() == nodes_evaluated(sampled, 1000, 3).tolist()
    assert nodes.tolist() != nodes_evaluated(sampled, 1000, 4).tolist()
    assert samples.tolist() != samples_evaluated(sampled, 10_000, 4).tolist()


@pytest.mark.parametrize(
    ("which", "nodes", "samples"),
    [("none", 0, 700), ("sampled", 32, 512), ("all", 40, 700)],
)
def test_whose_models_are_evaluated(which: str, nodes: int, samples: int) -> None:
    kind = NodesEvaluated(which)
    assert len(nodes_evaluated(kind, 40, 0)) == nodes
    assert len(samples_evaluated(kind, 700, 0)) == samples
