"""The geometric median has the least distances to all updates, and resists wrong ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from fedpilot.federated.algorithms import algorithm_of, geometric_median
from fedpilot.federated.algorithms.geometric_median import weiszfeld
from fedpilot.federated.config.schema import FederationConfig
from fedpilot.federated.core.algorithm import Needs
from fedpilot.federated.core.state import Array, digest
from fedpilot.federated.core.sums.partial import Partial, Tally

tables = st.integers(1, 7).flatmap(
    lambda clients: st.lists(
        st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3),
        min_size=clients,
        max_size=clients,
    )
)


def point_of(rows: Any) -> Array:
    found = weiszfeld([{"a": np.array(row[:1]), "b": np.array(row[1:])} for row in rows])
    return np.concatenate([found["a"], found["b"]])


def cost(rows: Any, point: Array) -> float:
    return float(sum(np.linalg.norm(np.array(row) - point) for row in rows))


def by_many_steps(rows: Array) -> Array:
    """Plain steps from the mean."""
    point = rows.mean(axis=0)
    for _ in range(2_000):
        weights = 1 / np.maximum(np.linalg.norm(rows - point, axis=1), 1e-12)
        point = weights @ rows / weights.sum()
    return np.asarray(point)


def test_it_is_what_many_plain_steps_find() -> None:
    for seed in range(2):
        rows = np.random.default_rng(seed).normal(size=(5 + seed, 4))
        np.testing.assert_allclose(point_of(rows), by_many_steps(rows), rtol=0, atol=1e-9)


@settings(max_examples=settings().max_examples // 3)
@given(rows=tables)
def test_no_point_nearby_is_better_and_it_lies_among_the_updates(rows: list[list[float]]) -> None:
    point = point_of(rows)
    table = np.array(rows)
    spread = float(np.abs(table - table[0]).max())
    assert (point >= table.min(axis=0) - 1e-9 * (1 + spread)).all()
    assert (point <= table.max(axis=0) + 1e-9 * (1 + spread)).all()
    rng = np.random.default_rng(0)
    for size in (1.0, 0.1):
        for _ in range(5):
            other = point + size * spread * rng.normal(size=3)
            assert cost(rows, point) <= cost(rows, other) + 1e-3 * spread + 1e-5


@settings(max_examples=settings().max_examples // 3)
@given(rows=tables, data=st.data())
def test_the_order_in_which_updates_arrive_does_not_matter(
    rows: list[list[float]], data: st.DataObject
) -> None:
    found = []
    for order in (range(len(rows)), data.draw(st.permutations(range(len(rows))))):
        partial = Partial.keeping_updates()
        for place in order:
            moved = {"w": np.array(rows[place], dtype=np.float32)}
            partial.keep(str(place), moved, 1 + place, Tally())
        found.append(digest(geometric_median().combine(partial)))
    assert found[0] == found[1]


@given(
    honest=st.lists(st.floats(-1, 1), min_size=4, max_size=4),
    evil=st.floats(-1e38, 1e38),
    others=st.integers(1, 3),
)
def test_fewer_than_half_of_the_clients_cannot_drag_it_away(
    honest: list[float], evil: float, others: int
) -> None:
    """Pillutla et al. 2022, lemma 2: no farther than 2 (n - b) / (n - 2 b) times their reach."""
    assume(abs(evil) > 10)
    rows = [[each, 0.5, -each] for each in honest] + [[evil, evil, -evil]] * others
    point = point_of(rows)
    centre = np.array(rows[0])
    reach = max(float(np.linalg.norm(np.array(row) - centre)) for row in rows[:4])
    bound = 2 * 4 / (4 - others) * max(reach, 1e-3)
    assert np.linalg.norm(point - centre) <= bound * (1 + 1e-6)


def test_a_majority_of_equal_updates_is_the_answer() -> None:
    point = point_of([[1.0, 2.0, 3.0]] * 3 + [[9.0, 9.0, 9.0], [-5.0, 0.0, 1e6]])
    np.testing.assert_allclose(point, [1.0, 2.0, 3.0], atol=2e-6)


def test_one_update_is_its_own_median_and_none_is_none() -> None:
    assert point_of([[1.5, -2.0, 3.0]]).tolist() == [1.5, -2.0, 3.0]
    assert geometric_median().combine(Partial.keeping_updates()) == {}


def test_updates_whose_distances_leave_float64_still_have_a_median() -> None:
    assert point_of([[1e200, 0.0, 0.0], [2e200, 0.0, 0.0], [4e200, 0.0, 0.0]])[0] == 2e200
    assert point_of([[1e200, 0.0, 0.0], [-1e200, 0.0, 0.0]]).tolist() == [0.0, 0.0, 0.0]


def test_a_client_counts_once_whatever_samples_it_claims() -> None:
    found = []
    for claimed in (1, 10**6):
        partial = Partial.keeping_updates()
        for place, value in enumerate([0.0, 1.0, 3.0]):
            moved = {"w": np.array([value, 0.0], np.float32)}
            partial.keep(str(place), moved, claimed if place == 2 else 1, Tally())
        found.append(geometric_median().combine(partial)["w"].tolist())
    assert found[0] == found[1] == pytest.approx([1.0, 0.0], abs=1e-5)


def test_the_config_chooses() -> None:
    section = FederationConfig(aggregation_strategy="geometric_median")
    algorithm = algorithm_of(section)
    assert (algorithm.name, algorithm.needs) == ("geometric_median", Needs.EVERY_UPDATE)
