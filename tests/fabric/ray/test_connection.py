"""Attaching to a Ray that runs: how long it is tried, and what is said when it fails."""

from __future__ import annotations

import time

import pytest

from fedpilot.fabric import ClusterUnreachable
from fedpilot.fabric.ray import connection

ADDRESS = "10.0.0.1:6379"
GAVE_UP = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")


class Thread:
    """In the place of Ray: fails as it is told, then works."""

    failures: list[BaseException]
    begun = ended = 0

    def __init__(self, *, private: bool, address: str) -> None:
        assert (private, address) == (False, ADDRESS)
        Thread.begun += 1

    def wait(self, timeout_s: float) -> None:
        if Thread.failures:
            raise Thread.failures.pop(0)

    def end(self) -> None:
        Thread.ended += 1


def attach(
    monkeypatch: pytest.MonkeyPatch, *failures: BaseException, answers: bool, left_s: float
) -> None:
    Thread.failures, Thread.begun, Thread.ended = [*failures], 0, 0
    monkeypatch.setattr(connection, "RayThread", Thread)
    monkeypatch.setattr(connection, "answers", lambda *_: answers)
    connection.attached(ADDRESS, "disabled", time.monotonic() + left_s, 120.0)


def test_ray_gives_up_early_and_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    attach(monkeypatch, GAVE_UP, GAVE_UP, answers=True, left_s=60.0)
    assert (Thread.begun, Thread.ended) == (3, 2)


@pytest.mark.parametrize(
    ("failure", "answers", "left_s", "said"),
    [
        pytest.param(GAVE_UP, False, 60.0, "Failed to connect", id="nobody answers any more"),
        pytest.param(GAVE_UP, True, -1.0, "Failed to connect", id="its time is up"),
        pytest.param(connection.TooSlow(), True, 0.0, "within 120 s", id="nothing came in time"),
        pytest.param(ValueError("no such option"), True, 60.0, "no such option", id="an error"),
    ],
)
def test_what_is_not_there_is_said_once(
    failure: BaseException,
    answers: bool,
    left_s: float,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ClusterUnreachable, match=said):
        attach(monkeypatch, failure, answers=answers, left_s=left_s)
    assert (Thread.begun, Thread.ended) == (1, 1)


def test_an_interruption_ends_what_was_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        attach(monkeypatch, KeyboardInterrupt(), answers=True, left_s=60.0)
    assert (Thread.begun, Thread.ended) == (1, 1)
