"""A cohort is cut into chunks of equal cost that hold every client once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.chunking import TARGET_S, UNKNOWN_PER_WORKER, deal, how_many
from fedpilot.federated.core.journaling import worth_saving


@pytest.mark.parametrize(
    ("clients", "workers", "seconds", "chunks"),
    [
        pytest.param(
            100, 4, None, 4 * UNKNOWN_PER_WORKER, id="several each while costs are unknown"
        ),
        pytest.param(100, 4, 0.01, 4, id="one each in a short round"),
        pytest.param(100, 4, 0.0, 4, id="one each in no time at all"),
        pytest.param(100, 4, 20 * TARGET_S, 20, id="so many in a long round that each is short"),
        pytest.param(3, 4, None, 3, id="never more than clients"),
        pytest.param(3, 4, 1e9, 3, id="never more than clients, however long"),
        pytest.param(1, 1, None, 1, id="one client"),
        pytest.param(0, 4, None, 1, id="at least one"),
    ],
)
def test_how_many_chunks(clients: int, workers: int, seconds: float | None, chunks: int) -> None:
    assert how_many(clients, workers, seconds) == chunks


@given(
    st.lists(st.integers(0, 10_000), min_size=1, max_size=200),
    st.integers(1, 50),
)
def test_dealing_gives_every_client_once_in_chunks_of_nearly_equal_cost(
    costs: list[int], chunks: int
) -> None:
    array = np.array(costs, dtype=np.int64)
    parts = deal(array, chunks)
    assert len(parts) == chunks
    assert sorted(int(i) for part in parts for i in part) == list(range(len(costs)))
    sums = [int(array[part].sum()) for part in parts]
    assert sums == sorted(sums, reverse=True), "the longest come first"
    assert max(sums) - min(sums) <= max(costs)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_dealing_is_the_same_every_time_when_costs_are_equal() -> None:
    costs = np.full(10, 3, dtype=np.int64)
    assert [part.tolist() for part in deal(costs, 3)] == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


@pytest.mark.parametrize(
    ("unsaved_s", "write_s", "worth"),
    [
        pytest.param(1.0, 0.02, True, id="a write of two percent is worth it"),
        pytest.param(1.0, 0.021, False, id="a dearer one is not"),
        pytest.param(0.0, 0.0, False, id="nothing unsaved needs no write"),
        pytest.param(0.001, 0.0, True, id="a free write is always worth it"),
        pytest.param(100.0, 2.0, True, id="unsaved work adds up"),
    ],
)
def test_when_saving_is_worth_it(unsaved_s: float, write_s: float, worth: bool) -> None:
    assert worth_saving(unsaved_s, write_s) is worth


@given(st.lists(st.floats(0.001, 10), max_size=100), st.floats(0.0001, 1))
def test_saving_never_takes_more_than_its_share(work: list[float], write_s: float) -> None:
    unsaved = spent = 0.0
    for seconds in work:
        unsaved += seconds
        if worth_saving(unsaved, write_s):
            spent += write_s
            unsaved = 0.0
    assert spent <= 0.02 * sum(work) + 1e-9
