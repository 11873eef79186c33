"""What it costs a client to keep its state between rounds: microseconds of CPU time.

    python benchmarks client_states

A SCAFFOLD-like memory of the network of w2 (38 KB), 100 of 1,000 clients per round, in two pieces.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from fedpilot.federated.core.state import Array
from fedpilot.federated.site.states.client_states import ClientStates

POPULATION, COHORT, PIECES = 1_000, 100, 2
ROUNDS, WARM = 90, 30
SHAPES = {"0.weight": (128, 64), "0.bias": (128,), "2.weight": (10, 128), "2.bias": (10,)}


def main() -> None:
    random = np.random.default_rng(0)
    spent: dict[str, list[float]] = {"load": [], "save": [], "drop": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(ClientStates(Path(folder) / "clients.sqlite")) as states,
    ):
        for number in range(1, ROUNDS + 1):
            cohort = random.choice(POPULATION, COHORT, replace=False)
            pieces = [np.sort(piece) for piece in np.array_split(cohort, PIECES)]
            kept = [{int(client): memory(random) for client in piece} for piece in pieces]
            spent["load"].append(sum(taken(partial(states.load, p, number)) for p in pieces))
            spent["save"].append(sum(taken(partial(states.save, number, k)) for k in kept))
            spent["drop"].append(taken(partial(states.commit, number - 2)))
    for name, seconds in spent.items():
        print(f"{name} {statistics.median(seconds[WARM:]) / COHORT * 1e6:5.1f} us per client")


def memory(random: np.random.Generator) -> dict[str, Array]:
    """A client's control variate."""
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def taken(act: Callable[[], object]) -> float:
    """Seconds of CPU time of this thread."""
    begun = time.thread_time()
    act()
    return time.thread_time() - begun
