"""Which nodes of a graph are evaluated, on which samples, and how good all of them are together.

The figures do not depend on the order of the nodes, nor on how many sites counted them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ..population.sampling import Indices, evaluation_cohort
from ..randomness import Purpose, stream

SAMPLED_NODES, SAMPLED_SAMPLES = 32, 512
"""With `NodesEvaluated.SAMPLED`: at most so many nodes, each on at most so many test samples."""
WORST = 10
"""The worst tenth."""


class NodesEvaluated(StrEnum):
    """Whose own models are evaluated."""

    NONE = "none"
    SAMPLED = "sampled"
    ALL = "all"


def nodes_evaluated(which: NodesEvaluated, nodes: int, seed: int) -> Indices:
    """The nodes whose models are evaluated, ascending; the same ones in every round."""
    if which is NodesEvaluated.NONE:
        return np.arange(0)
    most = SAMPLED_NODES if which is NodesEvaluated.SAMPLED else nodes
    return evaluation_cohort(nodes, most, seed, 0)


def samples_evaluated(which: NodesEvaluated, samples: int, seed: int) -> Indices:
    """The samples of a test set on which each node is evaluated, ascending."""
    if which is not NodesEvaluated.SAMPLED or samples <= SAMPLED_SAMPLES:
        return np.arange(samples)
    random = stream(seed, Purpose.EVALUATION, key=1)
    return np.sort(random.choice(samples, SAMPLED_SAMPLES, replace=False)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class NodeScores:
    """How good the models of a graph's nodes are."""

    mean: float
    """Of their accuracies; NaN without any."""
    worst_tenth: float
    """The mean of the worst tenth, rounded up to a whole number of nodes."""


def node_scores(correct: Indices, samples: Indices) -> NodeScores:
    """The scores of nodes that got so many of so many samples right.

    Nodes without samples are left out. The sums are those of real numbers, rounded once: they are
    the same in any order.
    """
    some = samples > 0
    accuracies = np.sort(correct[some] / samples[some]).tolist()
    if not accuracies:
        return NodeScores(math.nan, math.nan)
    worst = accuracies[: -(-len(accuracies) // WORST)]
    return NodeScores(
        math.fsum(accuracies) / len(accuracies),
        math.fsum(worst) / len(worst),
    )
