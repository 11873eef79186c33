"""What a run's coordinator tells the mediator of its end: whoever follows it is not misled."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedpilot.federated.core.user_code.user_errors import failure_of
from fedpilot.federated.federation.events import event
from fedpilot.federated.federation.remote.coordinator_process import EventReporter, suggested_sites
from fedpilot.federated.federation.report.wording import remark
from fedpilot.mediator.errors import SitesFull


class Line:
    """The way to the mediator."""

    def __init__(self) -> None:
        self.told: list[Mapping[str, Any]] = []

    def emit(self, told: Mapping[str, Any]) -> None:
        self.told.append({name: each for name, each in told.items() if name != "time"})


def ended(status: str, failure: str = "") -> Any:
    return event("run_finished", run_id="r", status=status, failure=failure)


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def telling(line: Line) -> EventReporter:
    connection: Any = line
    return EventReporter(connection)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        pytest.param(
            "interrupted by the user",
            "its coordinator was ended, and goes on as soon as the mediator is back",
            id="the mediator ends",
        ),
        pytest.param("the disk is full: x", "the disk is full: x", id="there is no room"),
    ],
)
def test_a_run_that_will_go_on_is_told_as_waiting(
    failure: str, reason: str, telling: EventReporter, line: Line
) -> None:
    telling(ended("interrupted", failure))
    assert line.told == [{"event": "run_waiting", "run_id": "r", "reason": reason}]
    assert not telling.ended
    assert remark("run_waiting", line.told[0]) == f"run r waits: {reason}"


def test_a_run_whose_sites_are_full_has_not_ended(telling: EventReporter, line: Line) -> None:
    telling(ended("failed", failure_of(SitesFull({"oslo": "busy"}))))
    assert line.told == []
    assert not telling.ended


def test_the_sites_that_had_room_are_read_from_the_folder_of_a_run(tmp_path: Path) -> None:
    assert suggested_sites(tmp_path) == ()
    (tmp_path / "turn.json").write_text('{"sites": ["oslo", "rome"]}')
    assert suggested_sites(tmp_path) == ("oslo", "rome")
    (tmp_path / "turn.json").write_text('{"sites"')
    assert suggested_sites(tmp_path) == ()


def test_a_run_that_somebody_stopped_has_ended(
    telling: EventReporter, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, number: signals.append(number))
    telling.stop("stopped by ada")
    telling(ended("interrupted", "interrupted by the user"))
    assert signals == [signal.SIGTERM]
    assert [each["event"] for each in line.told] == ["run_finished"]
    assert telling.ended


@pytest.mark.parametrize("status", ["finished", "failed"])
def test_other_ends_are_told_as_they_are(status: str, telling: EventReporter, line: Line) -> None:
    telling(ended(status))
    assert [(each["event"], each["status"]) for each in line.told] == [("run_finished", status)]
