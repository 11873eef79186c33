"""A step that says nothing for long is spoken of, with how busy the machine is."""

from __future__ import annotations

import queue
from typing import Any

import pytest

from fedpilot.federated.federation import step_watch
from fedpilot.federated.federation.events import event
from fedpilot.federated.federation.report.wording import remark
from fedpilot.federated.federation.step_watch import StepWatch

HANG_S = 60.0


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> queue.Queue[dict[str, Any]]:
    monkeypatch.setattr(step_watch, "QUIET_S", 0.01)
    return queue.Queue()


def watch(said: queue.Queue[dict[str, Any]]) -> StepWatch:
    return StepWatch(lambda name, **fields: said.put({"event": name, **fields}))


def test_a_silent_step_is_told_again_and_again(said: queue.Queue[dict[str, Any]]) -> None:
    with watch(said).step("workers", 300.0):
        first, second = said.get(timeout=HANG_S), said.get(timeout=HANG_S)
    assert (first["event"], first["step"], first["within"]) == ("waiting", "workers", 300.0)
    assert first["load"] >= 0
    assert first["cpus"] >= 1
    assert second["seconds"] >= first["seconds"]


def test_a_round_is_named(said: queue.Queue[dict[str, Any]]) -> None:
    watched = watch(said)
    with watched.step("round"):
        watched.heard("round_started", round=7, of=9)
        while (found := said.get(timeout=HANG_S))["round"] != 7:
            pass
    assert "for round 7" in (remark("waiting", found) or "")


@pytest.mark.parametrize(
    ("step", "event"),
    [
        pytest.param("round", "round_started", id="a round began"),
        pytest.param("mediator", "round_finished", id="the mediator told of something"),
    ],
)
def test_what_is_waited_for_is_waited_for_since_it_was_begun(step: str, event: str) -> None:
    now = 0.0
    said: queue.Queue[dict[str, Any]] = queue.Queue()
    watched = StepWatch(lambda name, **fields: said.put(fields), clock=lambda: now)
    with watched.step(step):
        now = 50.0
        watched.heard(event, round=471, of=900)
        now = 50.0 + step_watch.QUIET_S
        assert said.get(timeout=HANG_S)["seconds"] == step_watch.QUIET_S


def test_a_step_that_talks_is_not_told_of(
    said: queue.Queue[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_watch, "QUIET_S", HANG_S)
    with watch(said).step("gang"):
        pass
    assert said.empty()


def test_who_does_not_read_any_more_does_not_stop_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_watch, "QUIET_S", 0.01)
    tried: queue.Queue[str] = queue.Queue()

    def broken(name: str, **_: Any) -> None:
        tried.put(name)
        raise BrokenPipeError

    with StepWatch(broken).step("ray"):
        assert [tried.get(timeout=HANG_S), tried.get(timeout=HANG_S)] == ["waiting", "waiting"]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        pytest.param(
            {"step": "ray", "seconds": 20.2, "within": 300.0, "load": 16.2, "cpus": 2},
            "  waiting  for Ray, 20 s so far of at most 5 min; load 16.2 on 2 CPUs",
            id="with a deadline",
        ),
        pytest.param(
            {"step": "ending", "seconds": 10.0, "within": None, "load": 0.5, "cpus": 1},
            "  waiting  for curves and records to be written, 10 s so far; load 0.5 on 1 CPU",
            id="without one",
        ),
        pytest.param(
            {"step": "newer", "seconds": 10.0, "within": None, "load": 0.5, "cpus": 1},
            "  waiting  for newer, 10 s so far; load 0.5 on 1 CPU",
            id="a step of a newer version",
        ),
    ],
)
def test_the_line_says_what_is_waited_for(fields: dict[str, Any], line: str) -> None:
    assert remark("waiting", event("waiting", **fields).fields) == line


STARTING = {"site": "local", "up": 1, "of": 2, "seconds": 20, "within": 300.0}


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        pytest.param(
            {**STARTING, "load": 16.2, "cpus": 2, "niceness": 15},
            "  waiting  for workers: 1 of 2 workers up, 20 s so far of at most 5 min; load "
            "16.2 on 2 CPUs, workers at niceness 15; RAY_worker_niceness=0 where its raylet starts "
            "would help",
            id="nice ones",
        ),
        pytest.param(
            {**STARTING, "site": "oslo", "load": 16.2, "cpus": 2, "niceness": 0},
            "  waiting  for workers: 1 of 2 workers at oslo up, 20 s so far of at most 5 min; "
            "load 16.2 on 2 CPUs, workers at niceness 0",
            id="those of a site",
        ),
        pytest.param(
            {"site": "oslo", "up": 0, "of": 1, "seconds": 20},
            "  waiting  for workers: 0 of 1 worker at oslo up, 20 s so far",
            id="a site that says no more",
        ),
    ],
)
def test_workers_that_start_slowly_are_told_with_load_and_niceness(
    fields: dict[str, Any], line: str
) -> None:
    assert remark("workers_starting", fields) == line
