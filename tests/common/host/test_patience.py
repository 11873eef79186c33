"""What takes long is spoken of while it does, and what does not is not."""

from __future__ import annotations

import queue
import threading

import pytest

from fedpilot.common.host.patience import Patience

HANG_S = 60.0


def test_what_takes_long_is_said_again_and_again() -> None:
    said: queue.Queue[float] = queue.Queue()
    with Patience(said.put, first_s=0.01, every_s=0.02):
        times = [said.get(timeout=HANG_S) for _ in range(3)]
    assert times == sorted(times)
    assert times[0] >= 0.01
    assert times[1] - times[0] >= 0.02


def test_what_is_over_is_not_said() -> None:
    said: list[float] = []
    with Patience(said.append, first_s=HANG_S):
        pass
    assert not said
    assert "patience" not in {thread.name for thread in threading.enumerate()}


def test_who_has_just_heard_something_is_told_nothing_yet() -> None:
    now = 0.0
    said: queue.Queue[float] = queue.Queue()
    with Patience(said.put, first_s=10, every_s=10, clock=lambda: now) as patience:
        now = 9.0
        patience.heard()
        now = 18.0
        with pytest.raises(queue.Empty):
            said.get(timeout=0.1)
        now = 19.5
        assert said.get(timeout=HANG_S) == 19.5


def test_an_error_inside_ends_it_too() -> None:
    with pytest.raises(ZeroDivisionError), Patience(lambda _: None):
        raise ZeroDivisionError
    assert "patience" not in {thread.name for thread in threading.enumerate()}
