"""How soon a placement group has room again, by how its tasks have ended."""

from __future__ import annotations

import math

import pytest

from fedpilot.fabric.core.places.groups import GroupId
from fedpilot.fabric.core.routing.pace import GUESS_S, HEARD_S, LEAST_S, Paces, batch_limit

ONE, OTHER = GroupId("one"), GroupId("other")


def test_a_queue_lasts_as_long_as_its_tasks() -> None:
    paces: Paces[str] = Paces()
    paces.began(ONE, 0.0)
    assert paces.task_s("short") is None
    paces.ended(ONE, "short", count=1, running=1, now=0.2 + HEARD_S)
    assert paces.task_s("short") == 0.2
    assert paces.wait_s(ONE, "short", queued=4, slots=1, now=0.2 + HEARD_S) == 5 * 0.2
    assert paces.wait_s(ONE, "short", queued=4, slots=2, now=0.2 + HEARD_S) == 5 * 0.1
    assert paces.wait_s(ONE, "unknown", queued=0, slots=1, now=0.2 + HEARD_S) == GUESS_S


def test_many_that_end_at_once_took_their_share_of_the_time_each() -> None:
    paces: Paces[str] = Paces()
    paces.began(ONE, 10.0)
    paces.ended(ONE, "short", count=10, running=2, now=11.0 + HEARD_S)
    assert paces.task_s("short") == pytest.approx(0.2)
    paces.ended(ONE, "short", count=100, running=2, now=11.0 + HEARD_S)
    assert paces.task_s("short") == pytest.approx((0.2 + LEAST_S) / 2)


def test_where_nothing_ends_nothing_is_about_to_end() -> None:
    paces: Paces[str] = Paces()
    paces.began(ONE, 0.0)
    paces.ended(ONE, "short", count=1, running=1, now=0.1)
    paces.began(OTHER, 0.1)
    paces.began(ONE, 0.1)
    paces.ended(ONE, "short", count=1, running=1, now=30.0)
    assert paces.wait_s(OTHER, "short", queued=0, slots=1, now=30.0) > 29.9
    assert paces.wait_s(ONE, "short", queued=0, slots=0, now=30.0) == math.inf


def test_a_group_that_nobody_has_timed_is_timed_from_now_on() -> None:
    paces: Paces[str] = Paces()
    assert paces.wait_s(ONE, "short", queued=0, slots=1, now=100.0) == GUESS_S
    assert paces.wait_s(ONE, "short", queued=0, slots=1, now=103.0) > 3.0


def test_what_is_gone_is_forgotten() -> None:
    paces: Paces[str] = Paces()
    paces.began(ONE, 0.0)
    paces.ended(ONE, "short", count=1, running=1, now=5.0)
    paces.forget(but={OTHER})
    assert paces.wait_s(ONE, "short", queued=0, slots=1, now=50.0) == pytest.approx(5.0 - HEARD_S)
    paces.end(["short"])
    assert paces.task_s("short") is None


@pytest.mark.parametrize(
    ("waiting", "running", "limit"),
    [(0, 0, 1), (7, 1, 1), (16, 1, 2), (1000, 4, 31), (10_000, 4, 312)],
)
def test_batches_are_a_share_of_those_that_wait(waiting: int, running: int, limit: int) -> None:
    assert batch_limit(waiting, running) == limit
