"""Derives a round's clients from (seed, round) alone, so that any site can derive them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..randomness import Purpose, stream

Indices = npt.NDArray[np.int64]


def cohort(population: int, size: int, seed: int, round_number: int) -> Indices:
    """Draw `size` distinct clients out of `population`, sorted; O(size) once size << population."""
    return _draw(population, size, seed, Purpose.COHORT, round_number)


def evaluation_cohort(population: int, size: int, seed: int, round_number: int) -> Indices:
    """The clients that evaluate a round's model when `evaluation.clients: fraction`."""
    return _draw(population, size, seed, Purpose.EVALUATION, round_number)


def _draw(population: int, size: int, seed: int, purpose: Purpose, round_number: int) -> Indices:
    if size >= population:
        return np.arange(population, dtype=np.int64)
    chosen = stream(seed, purpose, round=round_number).choice(population, size, replace=False)
    return np.sort(chosen).astype(np.int64)


def share(population: int, fraction: float) -> int:
    """A share of the population as a number of clients: at least one, at most all."""
    return min(population, max(1, round(population * fraction)))
