"""Krum takes an update that has most others near it, and resists wrong ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.federated.algorithms import algorithm_of, krum, median, multi_krum
from fedpilot.federated.algorithms.every_update import WIDTH
from fedpilot.federated.algorithms.krum import chosen, squared_distances, tolerated
from fedpilot.federated.config.schema import FederationConfig
from fedpilot.federated.core.algorithm import Algorithm, Needs
from fedpilot.federated.core.state import digest
from fedpilot.federated.core.sums.partial import Partial, Tally


def union(rows: Sequence[Sequence[float]], order: Sequence[int] | None = None) -> Partial:
    """Updates by clients a, b, c, ..., which arrive in this order."""
    partial = Partial.keeping_updates()
    for place in order or range(len(rows)):
        row = np.array(rows[place], dtype=np.float32)
        moved = {"w": row[1:], "statistic": row[0].reshape(())}
        partial.keep(chr(ord("a") + place), moved, 1 + place, Tally())
    return partial


def best(rows: Any, byzantine: int, keeps: int) -> list[int]:
    """The paper's choice, by all subsets: a score is the least sum over n - f - 2 others."""
    rows = np.array(rows, dtype=np.float32).astype(np.float64)
    clients = len(rows)
    while byzantine and not 2 * byzantine + 2 < clients:
        byzantine -= 1
    scores = []
    for one in range(clients):
        others = [float(((rows[one] - rows[i]) ** 2).sum()) for i in range(clients) if i != one]
        near = itertools.combinations(others, max(0, clients - byzantine - 2))
        scores.append(min(sum(some) for some in near))
    return sorted(np.argsort(scores, kind="stable")[:keeps].tolist())


whole = st.integers(-50, 50).map(float)
tables = st.lists(st.lists(whole, min_size=3, max_size=3), min_size=1, max_size=8)


@settings(max_examples=settings().max_examples // 3)
@given(rows=tables, byzantine=st.integers(1, 3))
def test_krum_is_the_input_of_the_papers_score(rows: list[list[float]], byzantine: int) -> None:
    """Whole numbers, whose distances are exact: ties are ties, and the first client wins."""
    found = krum(byzantine).combine(union(rows))
    (place,) = best(rows, byzantine, 1)
    assert [float(found["statistic"]), *found["w"].tolist()] == rows[place]
    assert found["w"].dtype == np.float64
    assert found["statistic"].shape == ()


@given(rows=tables, byzantine=st.integers(1, 3), keeps=st.integers(1, 8) | st.none())
def test_multi_krum_is_the_mean_of_the_best(
    rows: list[list[float]], byzantine: int, keeps: int | None
) -> None:
    clients = len(rows)
    most = clients - min(byzantine, tolerated(clients))
    places = best(rows, byzantine, most if keeps is None else min(keeps, most))
    found = multi_krum(byzantine, keeps).combine(union(rows))
    expected = np.mean([rows[place] for place in places], axis=0)
    np.testing.assert_allclose([float(found["statistic"]), *found["w"]], expected, rtol=1e-12)


@pytest.mark.parametrize("algorithm", [krum(1), multi_krum(1), multi_krum(1, 2)])
@settings(max_examples=settings().max_examples // 3)
@given(rows=tables, data=st.data())
def test_the_order_in_which_updates_arrive_does_not_matter(
    algorithm: Algorithm, rows: list[list[float]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(rows))))
    found = algorithm.combine(union(rows, order))
    assert digest(found) == digest(algorithm.combine(union(rows)))


@given(sizes=st.permutations(range(15)), data=st.data())
def test_who_sends_what_does_not_matter_without_a_tie(
    sizes: list[int], data: st.DataObject
) -> None:
    """Distances are powers of two, so that no two scores are equal."""
    table = np.zeros((6, 6))
    table[np.triu_indices(6, 1)] = [2.0**size for size in sizes]
    table += table.T
    order = data.draw(st.permutations(range(6)))
    found = {order[place] for place in chosen(table[np.ix_(order, order)], 1, 2)}
    assert found == set(chosen(table, 1, 2))


def test_in_a_tie_the_client_comes_first_whose_id_does() -> None:
    rows = [[5.0, 0.0], [0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
    assert chosen(squared_distances([{"w": np.array(row)} for row in rows]), 1, 1) == [1]
    assert chosen(np.zeros((5, 5)), 1, 3) == [0, 1, 2]


@pytest.mark.parametrize(
    ("clients", "most"), [(0, 0), (1, 0), (4, 0), (5, 1), (6, 1), (7, 2), (100, 48)]
)
def test_how_many_are_tolerated(clients: int, most: int) -> None:
    """2 f + 2 < n."""
    assert tolerated(clients) == most


@pytest.mark.parametrize("evil", [3e38, -3e38, 2.0])
@pytest.mark.parametrize("algorithm", [krum(3), multi_krum(3), multi_krum(3, 2)])
def test_a_minority_that_sends_anything_is_not_chosen(algorithm: Algorithm, evil: float) -> None:
    rng = np.random.default_rng(1)
    honest = rng.normal(1.0, 0.01, size=(7, 20))
    rows = [[evil] * 20, *honest.tolist(), [evil] * 20, [-evil] * 20]
    found = algorithm.combine(union(rows))
    assert (found["w"] >= honest.min(axis=0)[1:] - 1e-6).all()
    assert (found["w"] <= honest.max(axis=0)[1:] + 1e-6).all()


def test_a_tensor_of_many_blocks_is_gone_through_to_its_end() -> None:
    rng = np.random.default_rng(2)
    updates = [{"w": rng.normal(size=(2, WIDTH)), "b": rng.normal(size=3)} for _ in range(3)]
    found = squared_distances(updates)
    for i, j in itertools.product(range(3), range(3)):
        apart = sum(float(((updates[i][n] - updates[j][n]) ** 2).sum()) for n in "wb")
        assert found[i, j] == pytest.approx(apart, rel=1e-12)


def test_numbers_whose_distance_leaves_float64_are_farthest_away() -> None:
    rows = [np.array([1e300, 0.0]), *(np.array([1.0, place]) for place in range(4))]
    updates = [{"w": row} for row in rows]
    assert np.isinf(squared_distances(updates)[0, 1:]).all()
    assert 0 not in chosen(squared_distances(updates), 1, None)


@pytest.mark.parametrize("algorithm", [krum(1), multi_krum(1)])
def test_clients_without_samples_do_not_count(algorithm: Algorithm) -> None:
    partial = union([[0.0, 1.0], [0.0, 1.0]])
    for name in "xyz":
        moved = {"w": np.full(1, 9.0, np.float32), "statistic": np.array(9.0, np.float32)}
        partial.keep(name, moved, 0, Tally())
    assert algorithm.combine(partial)["w"].tolist() == [1.0]
    assert algorithm.combine(Partial.keeping_updates()) == {}
    with pytest.raises(ValueError, match="each client"):
        algorithm.combine(Partial({}))


def test_the_config_chooses() -> None:
    rows = [[0.0, 4.0], [0.0, 4.1], [0.0, 4.3], [0.0, 4.4], [0.0, 99.0]]
    for keys, same in (
        ({"aggregation_strategy": "krum", "byzantine_clients": 1}, krum(1)),
        ({"aggregation_strategy": "multi_krum", "byzantine_clients": 1}, multi_krum(1)),
        (
            {"aggregation_strategy": "multi_krum", "byzantine_clients": 1, "krum_keeps": 2},
            multi_krum(1, 2),
        ),
    ):
        algorithm = algorithm_of(FederationConfig.model_validate(keys))
        assert (algorithm.name, algorithm.needs) == (same.name, Needs.EVERY_UPDATE)
        found = digest(algorithm.combine(union(rows)))
        assert found == digest(same.combine(union(rows)))
        assert found != digest(median().combine(union(rows)))
