"""The median and the trimmed mean are NumPy's, in the same bits whatever order updates come in."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.federated.algorithms import algorithm_of, median, trimmed_mean
from fedpilot.federated.algorithms.coordinatewise import NARROWEST, cut
from fedpilot.federated.config.schema import FederationConfig
from fedpilot.federated.core.algorithm import Algorithm, Needs
from fedpilot.federated.core.state import Array, TensorRole, digest
from fedpilot.federated.core.sums.partial import Partial, Reference, Tally

ROLES = {"w": TensorRole.TRAINED, "statistic": TensorRole.STATISTIC}


def zeros(width: int, dtype: str = "float32") -> dict[str, Array]:
    return {"w": np.zeros(width, dtype=dtype), "statistic": np.zeros((), dtype=np.float32)}


def union(rows: Sequence[Sequence[float]], dtype: str = "float32", weight: int = 1) -> Partial:
    """What clients send that moved to these from zero; the statistic moves as the first number."""
    reference = Reference.of(zeros(len(rows[0]), dtype), ROLES)
    partial = Partial.keeping_updates()
    for index, row in enumerate(rows):
        state = {"w": np.array(row, dtype=dtype), "statistic": np.array(row[0], dtype=np.float32)}
        partial.add(f"client_{index}", state, weight + index, Tally(), reference)
    return partial


finite = st.floats(-(2.0**100), 2.0**100, width=32)
tables = st.integers(1, 12).flatmap(
    lambda width: st.lists(
        st.lists(finite, min_size=width, max_size=width), min_size=1, max_size=12
    )
)


@given(rows=tables)
@settings(deadline=None)
def test_the_median_is_that_of_numpy(rows: list[list[float]]) -> None:
    found = median().combine(union(rows))
    expected = np.median(np.array(rows, dtype=np.float32).astype(np.float64), axis=0)
    assert found["w"].dtype == np.float64
    assert np.array_equal(found["w"], expected)
    assert float(found["statistic"]) == expected[0]
    assert found["statistic"].shape == ()


@given(rows=tables, trim=st.sampled_from([0.05, 0.1, 0.2, 1 / 3, 0.49]))
@settings(deadline=None)
def test_the_trimmed_mean_is_the_mean_of_what_is_left(rows: list[list[float]], trim: float) -> None:
    found = trimmed_mean(trim).combine(union(rows))["w"]
    ends = cut(trim, len(rows))
    for column, value in enumerate(found):
        ordered = sorted(float(np.float32(row[column])) for row in rows)
        inner = ordered[ends : len(rows) - ends]
        assert float(value) == functools.reduce(operator.add, inner) / len(inner)
        np.testing.assert_allclose(value, math.fsum(inner) / len(inner), rtol=1e-9, atol=2.0**52)


@pytest.mark.parametrize("algorithm", [median(), trimmed_mean(0.2)], ids=lambda a: a.name)
@given(rows=tables, data=st.data())
@settings(deadline=None, max_examples=settings().max_examples // 3)
def test_who_sends_what_and_in_which_order_does_not_matter(
    algorithm: Algorithm, rows: list[list[float]], data: st.DataObject
) -> None:
    rows = [[x * data.draw(st.sampled_from([1.0, 0.0, -0.0])) for x in row] for row in rows]
    shuffled = data.draw(st.permutations(rows))
    assert digest(algorithm.combine(union(shuffled))) == digest(algorithm.combine(union(rows)))


def test_a_tensor_of_many_blocks_is_gone_through_to_its_end() -> None:
    rng = np.random.default_rng(1)
    table = rng.normal(size=(1025, NARROWEST + 7))
    found = median().combine(union(table.tolist(), "float64"))["w"]
    assert np.array_equal(found, np.median(table, axis=0))
    wide = rng.normal(size=(4, 50_001))
    found = median().combine(union(wide.tolist(), "float64"))["w"]
    assert np.array_equal(found, np.median(wide, axis=0))


@pytest.mark.parametrize(
    ("trim", "clients", "ends"),
    [
        pytest.param(0.1, 9, 0, id="a tenth of nine is nobody"),
        pytest.param(0.1, 10, 1, id="a tenth of ten is one"),
        pytest.param(0.29, 100, 29, id="0.29 is meant as it is written"),
        pytest.param(0.499, 3, 1, id="somebody is left"),
        pytest.param(0.499, 2, 0, id="two cannot be trimmed"),
        pytest.param(1e-5, 100_000, 1, id="a share in scientific notation"),
    ],
)
def test_how_many_are_cut_off(trim: float, clients: int, ends: int) -> None:
    assert cut(trim, clients) == ends


@pytest.mark.parametrize("algorithm", [median(), trimmed_mean(0.25)], ids=lambda a: a.name)
@pytest.mark.parametrize("evil", [3e38, -3e38, 0.0])
def test_a_few_clients_who_send_anything_do_not_move_it_out_of_the_honest_range(
    algorithm: Algorithm, evil: float
) -> None:
    rng = np.random.default_rng(2)
    honest = rng.normal(1.0, 0.1, size=(7, 20))
    found = algorithm.combine(union([*honest.tolist(), [evil] * 20, [-evil] * 20], weight=9999))
    assert (found["w"] >= honest.min(axis=0) - 1e-6).all()
    assert (found["w"] <= honest.max(axis=0) + 1e-6).all()


def test_clients_without_samples_do_not_count() -> None:
    reference = Reference.of(zeros(1), ROLES)
    partial = union([[1.0], [2.0], [3.0]])
    for index in range(9):
        partial.add(f"empty_{index}", zeros(1), 0, Tally(), reference)
    assert median().combine(partial)["w"].tolist() == [2.0]
    assert median().combine(Partial.keeping_updates()) == {}


def test_a_sum_is_not_enough() -> None:
    with pytest.raises(ValueError, match="each client"):
        median().combine(Partial({}))


@pytest.mark.parametrize(
    ("keys", "name", "needs"),
    [
        pytest.param({}, "fedavg", Needs.SUM, id="the default sums"),
        pytest.param({"aggregation_strategy": "median"}, "median", Needs.EVERY_UPDATE, id="median"),
        pytest.param(
            {"aggregation_strategy": "trimmed_mean", "trim": 0.3},
            "trimmed_mean",
            Needs.EVERY_UPDATE,
            id="trimmed mean",
        ),
    ],
)
def test_the_config_chooses(keys: dict[str, object], name: str, needs: Needs) -> None:
    algorithm = algorithm_of(FederationConfig.model_validate({**keys, "server_learning_rate": 0.5}))
    assert (algorithm.name, algorithm.needs) == (name, needs)
    new, _ = algorithm.apply(zeros(1), ROLES, {}, {"w": np.ones(1), "statistic": np.ones(())})
    assert new["w"].tolist() == [0.5]
    assert float(new["statistic"]) == 1.0
