"""The work that every implementation does: one definition of models, clients, cohorts and batches.

A client is a row of an index table into a pool of samples, so that a population costs its table and
nothing else. Needs NumPy only; PyTorch is imported by what trains.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DIGITS = Path(__file__).parents[2] / "federated" / "data" / "digits.csv.gz"
BATCH, SEED = 10, 7
CLASSES, IMAGE, TOKENS, VOCABULARY = 10, (3, 32, 32), 64, 256
POOL = 2_000
"""Samples of the data sets that are made up."""


@dataclass(frozen=True)
class PeerWorkload:
    """A population, what a client of it holds, and how many of it train in a round."""

    model: str
    population: int
    cohort: int
    rounds: int
    """The first is not counted."""
    flower_rounds: int
    """The same for Flower where its rounds are long; 0 where it finishes none."""
    samples: tuple[int, int]
    """Least and most samples of a client."""
    rate: float = 0.1

    @functools.cached_property
    def pool(self):
        """All samples: x (n, ...) float32 or int64, y (n,) int64."""
        return {"mlp": digits, "transformer": sequences}.get(self.model, images)()

    @functools.cached_property
    def table(self):
        """(size of each client, its samples' positions)."""
        rng, (least, most) = np.random.default_rng(SEED), self.samples
        sizes = rng.integers(least, most + 1, self.population, dtype=np.int32)
        return sizes, rng.integers(0, len(self.pool[1]), (self.population, most), dtype=np.int32)

    def client(self, index: int):
        """The samples x (n, ...) and labels y (n,) of one client."""
        sizes, positions = self.table
        mine = positions[index, : sizes[index]]
        return self.pool[0][mine], self.pool[1][mine]

    def chosen(self, round_number: int):
        """The cohort of a round."""
        rng = np.random.default_rng((SEED, round_number))
        return rng.choice(self.population, self.cohort, replace=False)

    def accuracy(self, model) -> float:
        """Of a trained model on the pool's first samples: shows that it was trained, no more."""
        import torch

        x, y = (torch.from_numpy(part[:200]) for part in self.pool)
        with torch.inference_mode():
            return float((model.eval()(x).argmax(1) == y).float().mean())


SMALL, FIFTY = (12, 28), (50, 50)
WORKLOADS = {
    "w2": PeerWorkload("mlp", 1_000, 100, 50, 15, SMALL),
    "w2k": PeerWorkload("mlp", 10_000, 1_000, 20, 3, SMALL),
    "w3": PeerWorkload("mlp", 100_000, 100, 50, 3, SMALL),
    "w3m": PeerWorkload("mlp", 1_000_000, 100, 50, 0, SMALL),
    "w1": PeerWorkload("cnn", 1_000, 50, 5, 5, FIFTY),
    "resnet18": PeerWorkload("resnet18", 100, 10, 3, 3, FIFTY, rate=0.02),
    "transformer": PeerWorkload("transformer", 100, 10, 4, 4, FIFTY),
}


def digits():
    """The 1,797 digits that fedpilot brings: x (n, 64) in [0, 1]."""
    table = np.loadtxt(DIGITS, delimiter=",")
    return (table[:, :64] / 16.0).astype(np.float32), table[:, 64].astype(np.int64)


def images():
    """Noise around one image per class: x (n, 3, 32, 32)."""
    rng = np.random.default_rng(SEED)
    y = rng.integers(0, CLASSES, POOL)
    centers = rng.standard_normal((CLASSES, *IMAGE), dtype=np.float32)
    return (centers[y] + rng.standard_normal((POOL, *IMAGE), dtype=np.float32)) / 2, y


def sequences():
    """Tokens of which every class likes some better than others: x (n, 64) int64."""
    rng = np.random.default_rng(SEED)
    y = rng.integers(0, CLASSES, POOL)
    liked = rng.integers(0, VOCABULARY, (CLASSES, 16))
    drawn = liked[y[:, None], rng.integers(0, 16, (POOL, TOKENS))]
    anything = rng.integers(0, VOCABULARY, (POOL, TOKENS))
    return np.where(rng.random((POOL, TOKENS)) < 0.5, drawn, anything), y
