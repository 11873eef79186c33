"""Who takes part follows from (seed, round) alone, and costs what the cohort costs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.population.sampling import cohort, evaluation_cohort, share

DRAWS = [cohort, evaluation_cohort]
Draw = Callable[[int, int, int, int], npt.NDArray[np.int64]]


@pytest.mark.parametrize("draw", DRAWS)
@given(
    population=st.integers(1, 2000),
    size=st.integers(1, 2000),
    seed=st.integers(0, 2**63 - 1),
    number=st.integers(0, 2**32),
)
def test_a_cohort_is_distinct_sorted_and_of_the_size_asked_for(
    draw: Draw, population: int, size: int, seed: int, number: int
) -> None:
    chosen = draw(population, size, seed, number)
    assert chosen.dtype == np.int64
    assert len(chosen) == min(size, population)
    assert np.all(np.diff(chosen) > 0)
    assert 0 <= chosen[0] <= chosen[-1] < population
    assert chosen.tolist() == draw(population, size, seed, number).tolist()


@pytest.mark.parametrize("draw", DRAWS)
def test_another_round_or_seed_gives_another_cohort(draw: Draw) -> None:
    cohorts = {tuple(draw(1000, 20, s, r).tolist()) for s in range(3) for r in range(3)}
    assert len(cohorts) == 9


def test_who_trains_says_nothing_of_who_judges() -> None:
    assert cohort(1000, 20, 1, 1).tolist() != evaluation_cohort(1000, 20, 1, 1).tolist()


@pytest.mark.parametrize("draw", DRAWS)
def test_a_cohort_costs_its_own_size_whatever_the_population(draw: Draw) -> None:
    chosen = draw(10**15, 100, 7, 3)  # would not fit any memory if all were looked at
    assert len(set(chosen.tolist())) == 100


def test_everybody_takes_part_about_as_often() -> None:
    counts = np.bincount(np.concatenate([cohort(50, 10, 3, r) for r in range(500)]), minlength=50)
    assert counts.sum() == 5000
    assert 60 < counts.min() <= counts.max() < 140  # 100 expected, 9 standard deviation


@pytest.mark.parametrize(
    ("population", "fraction", "expected"),
    [
        pytest.param(100, 0.1, 10, id="a tenth"),
        pytest.param(100, 1.0, 100, id="all"),
        pytest.param(100, 1e-9, 1, id="one at least"),
        pytest.param(1, 0.5, 1, id="out of one"),
        pytest.param(3, 0.999, 3, id="rounded, and never more than all"),
    ],
)
def test_a_share_in_clients(population: int, fraction: float, expected: int) -> None:
    assert share(population, fraction) == expected
