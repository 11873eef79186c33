"""The clients of the peers' runs: rows of an index table into the digits, as large as fedpilot's.

Needs NumPy and scikit-learn only, so that every peer's environment can import it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

BATCH, RATE, LEAST, MOST, SEED = 10, 0.1, 12, 28, 7


@dataclass(frozen=True)
class Workload:
    """A population, and how many of it train in a round."""

    population: int
    cohort: int
    rounds: int

    @functools.cached_property
    def pool(self):
        """All digits: x (1797, 64) float32 in [0, 1], y (1797,) int64."""
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        return (x / 16.0).astype(np.float32), y.astype(np.int64)

    @functools.cached_property
    def table(self):
        """(size of each client, its samples' positions)."""
        rng = np.random.default_rng(SEED)
        sizes = rng.integers(LEAST, MOST + 1, self.population, dtype=np.int32)
        return sizes, rng.integers(0, len(self.pool[1]), (self.population, MOST), dtype=np.int32)

    def client(self, index: int):
        """The samples x (n, 64) and labels y (n,) of one client."""
        sizes, positions = self.table
        mine = positions[index, : sizes[index]]
        return self.pool[0][mine], self.pool[1][mine]

    def chosen(self, round_number: int):
        """The cohort of a round."""
        rng = np.random.default_rng((SEED, round_number))
        return rng.choice(self.population, self.cohort, replace=False)


WORKLOADS = {
    "w2": Workload(1_000, 100, 20),
    "w3": Workload(100_000, 100, 5),
}


def build_model():
    """The 64-128-10 MLP."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def train(model, x, y):
    """One epoch of plain SGD over a client's samples, in order."""
    import torch
    from torch.nn.functional import cross_entropy

    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    for start in range(0, len(y), BATCH):
        optimizer.zero_grad()
        cross_entropy(model(x[start : start + BATCH]), y[start : start + BATCH]).backward()
        optimizer.step()
