"""Places that are promised to a process that submits one task after the other."""

from __future__ import annotations

from fedpilot.fabric.core.places.groups import GroupId
from fedpilot.fabric.core.records import WorkId
from fedpilot.fabric.inside.promises import BURST_S, KEEP_S, MOST, Promises
from fedpilot.fabric.manager.routing.messages import Placed
from fedpilot.fabric.testing.fake_cluster import ManualClock


def place(number: int) -> tuple[WorkId, Placed]:
    return WorkId(f"w{number}"), Placed(GroupId("g"), 0, (), "queued")


def test_a_task_by_itself_is_promised_nothing() -> None:
    clock = ManualClock(100.0)
    promises = Promises(clock)
    for _ in range(3):
        assert promises.wanted("kind") == 0
        clock.advance(2 * BURST_S)


def test_a_burst_is_promised_more_each_time_up_to_a_limit() -> None:
    clock = ManualClock(100.0)
    promises = Promises(clock)
    asked = []
    for _ in range(9):
        asked.append(promises.wanted("kind"))
        clock.advance(BURST_S / 2)
    assert asked == [0, 1, 3, 7, 15, 31, 63, MOST, MOST]
    assert promises.wanted("another kind") == 0


def test_what_was_promised_is_taken_in_order_and_once() -> None:
    promises = Promises(ManualClock(100.0))
    promises.keep("kind", [place(1), place(2)])
    assert promises.take("another kind") is None
    assert [promises.take("kind") for _ in range(3)] == [place(1), place(2), None]


def test_what_nobody_takes_in_time_is_given_back() -> None:
    clock = ManualClock(100.0)
    promises = Promises(clock)
    promises.keep("kind", [place(1), place(2), place(3)])
    clock.advance(KEEP_S)
    assert promises.take("kind") == place(1)
    clock.advance(KEEP_S)
    assert promises.unused() == []
    clock.advance(KEEP_S)
    assert promises.unused() == ["w2", "w3"]
    assert promises.take("kind") is None
    assert not promises


def test_at_the_end_everything_is_given_back() -> None:
    promises = Promises(ManualClock(100.0))
    promises.keep("kind", [place(1)])
    promises.keep("another kind", [place(2)])
    assert promises.all() == ["w1", "w2"]
    assert promises.take("kind") is None
