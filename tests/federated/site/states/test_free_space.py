"""Rows of a file go where nothing is, the front first, and never over each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from fedpilot.federated.site.states.free_space import FreeSpace


def space(*parts: tuple[int, int]) -> FreeSpace:
    found = np.array(parts, dtype=np.int64).reshape(-1, 2)
    return FreeSpace(found[:, 0], found[:, 1])


def test_an_empty_file_is_filled_from_its_front() -> None:
    free = space()
    assert free.end == 0
    assert free.take(3, 10).tolist() == [0, 10, 20]
    assert free.end == 30


def test_holes_are_filled_before_the_file_grows() -> None:
    free = space((0, 10), (30, 10), (60, 5))
    assert free.take(5, 10).tolist() == [10, 20, 40, 50, 65]


def test_a_hole_that_is_too_small_is_left() -> None:
    free = space((0, 10), (15, 10))
    assert free.take(2, 10).tolist() == [25, 35]
    assert free.take(1, 5).tolist() == [10]


def test_parts_that_were_given_back_grow_together() -> None:
    free = space()
    places = free.take(4, 10)
    free.give(places[[2, 0]], np.array([10, 10]))
    assert free.take(1, 20).tolist() == [40]
    free.give(places[[1]], np.array([10]))
    assert free.take(1, 30).tolist() == [0]
    free.give(places[[3]], np.array([10]))
    assert free.take(1, 10).tolist() == [30]


def test_the_end_moves_back() -> None:
    free = space()
    places = free.take(3, 10)
    free.give(places[1:], np.array([10, 10]))
    assert free.end == 10


class AgainstASet(RuleBasedStateMachine):
    """It gives what a set of bytes in use allows, and the same as one made anew."""

    def __init__(self) -> None:
        super().__init__()
        self.free = space()
        self.used: dict[int, int] = {}

    @rule(count=st.integers(0, 6), length=st.integers(1, 5))
    def take(self, count: int, length: int) -> None:
        anew = space(*self.used.items()).take(count, length)
        places = self.free.take(count, length)
        assert places.tolist() == anew.tolist()
        for place in places.tolist():
            mine = range(place, place + length)
            assert not any(set(mine) & set(range(a, a + n)) for a, n in self.used.items())
            self.used[place] = length

    @rule(chosen=st.sets(st.integers(0, 30)))
    def give(self, chosen: set[int]) -> None:
        parts = [list(self.used.items())[i] for i in chosen if i < len(self.used)]
        for place, _ in parts:
            del self.used[place]
        found = np.array(parts, dtype=np.int64).reshape(-1, 2)
        self.free.give(found[:, 0], found[:, 1])
        assert self.free.end == max((a + n for a, n in self.used.items()), default=0)


TestAgainstASet = AgainstASet.TestCase


@given(st.integers(1, 50), st.integers(1, 64))
def test_rows_of_one_length_lie_side_by_side(count: int, length: int) -> None:
    assert np.diff(space().take(count, length)).tolist() == [length] * (count - 1)
