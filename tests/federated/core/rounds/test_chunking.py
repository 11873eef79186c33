"""A cohort is cut into pieces that hold every client once and let all workers end together."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.rounds.chunking import (
    CALL_S,
    LEAST_S,
    LONGEST_S,
    SHARE,
    SHORT_S,
    UNKNOWN_PIECES,
    pieces,
    ranges,
)
from fedpilot.federated.core.rounds.journaling import worth_saving

cohorts = st.lists(st.integers(0, 10_000), max_size=200)
paces = st.none() | st.floats(0.0, 1.0)


def int64s(costs: list[int]) -> np.ndarray:
    return np.array(costs, dtype=np.int64)


@given(cohorts, st.integers(1, 50), paces)
def test_every_client_is_in_one_piece_and_no_piece_is_empty(
    costs: list[int], workers: int, pace: float | None
) -> None:
    cut = pieces(int64s(costs), workers, pace)
    assert sorted(int(i) for part in cut for i in part) == list(range(len(costs)))
    assert all(len(part) for part in cut)
    assert all(part.dtype == np.int64 for part in cut)


@given(cohorts, st.integers(1, 50), paces)
def test_ranges_hold_every_client_once_in_order(
    costs: list[int], workers: int, pace: float | None
) -> None:
    cut = ranges(int64s(costs), workers, pace)
    assert [at for part in cut for at in range(part.start, part.stop)] == list(range(len(costs)))
    assert all(part.start < part.stop for part in cut)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=200), st.integers(1, 50))
def test_ranges_of_a_short_round_cost_alike(costs: list[int], workers: int) -> None:
    cut = ranges(int64s(costs), workers, 0.99 * SHORT_S * workers / sum(costs))
    parts = min(workers, len(costs))
    assert len(cut) <= parts
    assert max(sum(costs[part]) for part in cut) <= sum(costs) / parts + max(costs)


@given(cohorts, st.integers(1, 50), paces)
def test_the_largest_come_first_in_a_piece(
    costs: list[int], workers: int, pace: float | None
) -> None:
    for part in pieces(int64s(costs), workers, pace):
        own = [costs[i] for i in part]
        assert own == sorted(own, reverse=True)


@given(cohorts, st.integers(1, 50), paces)
def test_no_piece_costs_more_than_all_before_it_allow(
    costs: list[int], workers: int, pace: float | None
) -> None:
    """Longest first, so that the end of a round is even: a client is the most that two differ."""
    sums = [sum(costs[i] for i in part) for part in pieces(int64s(costs), workers, pace)]
    for before, after in itertools.pairwise(sums):
        assert after <= before + max(costs)


@pytest.mark.parametrize(
    ("clients", "workers", "pace", "parts"),
    [
        pytest.param(100, 4, None, 4 * UNKNOWN_PIECES, id="several each while costs are unknown"),
        pytest.param(100, 4, 1e-5, 4, id="one each in a short round"),
        pytest.param(100, 4, 3.2e-6, 2, id="no worker is called for less than a call costs"),
        pytest.param(100, 4, 0.0, 1, id="no time at all is one call's work"),
        pytest.param(3, 4, None, 3, id="never more than clients"),
        pytest.param(3, 4, 1e-3, 3, id="never more than clients in a short round"),
        pytest.param(3, 4, 1e9, 3, id="a client each, however long"),
        pytest.param(1, 1, None, 1, id="one client"),
        pytest.param(0, 4, None, 0, id="nobody"),
    ],
)
def test_how_many_pieces(clients: int, workers: int, pace: float | None, parts: int) -> None:
    assert len(pieces(np.full(clients, 10, dtype=np.int64), workers, pace)) == parts


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=200), st.integers(1, 50))
def test_a_short_round_is_dealt_out_one_piece_per_worker(costs: list[int], workers: int) -> None:
    pace = 0.99 * SHORT_S * workers / sum(costs)
    assert SHORT_S > 2 * CALL_S
    cut = pieces(int64s(costs), workers, pace)
    assert len(cut) == min(workers, len(costs))
    assert max(map(len, cut)) - min(map(len, cut)) <= 1
    sums = [sum(costs[i] for i in part) for part in cut]
    assert max(sums) - min(sums) <= max(costs), "of nearly equal cost"


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=300), st.integers(1, 16), st.data())
def test_the_pieces_of_a_long_round_shrink_towards_its_end(
    costs: list[int], workers: int, data: st.DataObject
) -> None:
    pace = data.draw(st.floats(1.01, 1e6)) * SHORT_S * workers / sum(costs)
    cut = pieces(int64s(costs), workers, pace)
    flat = [costs[i] for part in cut for i in part]
    assert flat == sorted(flat, reverse=True), "the longest clients go out first"
    left = sum(costs) * pace
    for part in cut:
        seconds = sum(costs[i] for i in part) * pace
        wanted = min(LONGEST_S, max(LEAST_S, left / (SHARE * workers)))
        assert len(part) == 1 or seconds <= wanted * (1 + 1e-9), "a share of what is left"
        left -= seconds
        if left > 1e-9:  # as much as fits: the next client would have been too much
            following = flat[sum(len(p) for p in cut[: _place(cut, part) + 1])] * pace
            assert seconds + following >= wanted * (1 - 1e-9)


def _place(cut: list[np.ndarray], part: np.ndarray) -> int:
    return next(at for at, each in enumerate(cut) if each is part)


def test_a_lost_worker_loses_no_more_than_a_piece_of_bounded_length() -> None:
    costs = np.full(100_000, 10, dtype=np.int64)
    cut = pieces(costs, 2, 1e-3)  # 1000 s of work
    seconds = [len(part) * 10 * 1e-3 for part in cut]
    assert max(seconds) <= LONGEST_S + 1e-9
    assert seconds[0] == pytest.approx(LONGEST_S)
    assert min(seconds[:-1]) >= LEAST_S - 1e-9
    assert seconds[-1] <= 2 * LEAST_S, "all workers end together"


def test_calls_are_few_where_clients_are_quick() -> None:
    """A piece is never made shorter than a call costs, however many clients there are."""
    costs = np.full(50_000, 1, dtype=np.int64)
    cut = pieces(costs, 4, 1e-5)  # half a second of work
    assert len(cut) <= 0.5 / LEAST_S + 4


def test_cutting_is_the_same_every_time_when_costs_are_equal() -> None:
    costs = np.full(10, 3, dtype=np.int64)
    assert [part.tolist() for part in pieces(costs, 3, 1e-3)] == [
        [0, 3, 6, 9], [1, 4, 7], [2, 5, 8]
    ]  # fmt: skip
    assert [part.tolist() for part in pieces(costs, 1, 1.0)] == [[i] for i in range(10)]


@pytest.mark.parametrize(
    ("unsaved_s", "write_s", "worth"),
    [
        pytest.param(1.0, 0.02, True, id="a write of two percent is worth it"),
        pytest.param(1.0, 0.021, False, id="a dearer one is not"),
        pytest.param(0.0, 0.0, False, id="nothing unsaved needs no write"),
        pytest.param(0.249, 0.0, False, id="a moment's work needs no write, however cheap"),
        pytest.param(0.25, 0.0, True, id="a free write is worth more than that"),
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
