"""Whoever follows a run at a mediator hears every event once, up to the run's end."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest

from fedpilot.common.host.machine import Load
from fedpilot.federated.federation import step_watch
from scripted_runs import a_round, events_of, finished, happened, invoke, started, trains
from user_service import Served, a_run


def test_a_run_that_waits_is_followed_to_its_end(served: Served) -> None:
    def train(run: str) -> None:
        waiting = happened("run_waiting", run_id=run, reason="the disk is full")
        served.service.say(run, started(run), a_round(1), waiting)
        served.service.say(run, started(run, resumed=True), a_round(2), finished(run))
        served.service.end(run, "finished")

    served.service.on_submit = train
    result = invoke("run", "digits.yaml", "--run-id", "base", *served.options)
    assert result.exit_code == 0, result.stderr
    assert "run base waits: the disk is full" in result.stdout
    assert "interrupted" not in result.stdout


def test_ctrl_c_is_the_last_event(served: Served) -> None:
    service = served.service
    service.on_submit, service.cuts = lambda run: service.say(run, started(run)), [1, 0]
    service.on_cut = lambda: None if service.cuts else os.kill(os.getpid(), signal.SIGINT)
    result = invoke("run", "digits.yaml", "--run-id", "base", "--json", *served.options)
    assert result.exit_code == 130
    told = events_of(result)
    assert [each["event"] for each in told] == ["run_submitted", "run_started", "run_detached"]
    assert told[-1]["reason"] == "interrupted"
    assert told[-1]["attach"] in result.stderr


def test_events_are_shown_once_each_over_cut_links(served: Served) -> None:
    trains(served)
    served.service.cuts = [1, 1, 0, 1]
    result = invoke("run", "digits.yaml", "--run-id", "base", "--json", *served.options)
    assert result.exit_code == 0
    assert [json.loads(line)["event"] for line in result.stdout.splitlines()] == [
        "run_submitted",
        "run_started",
        "round_finished",
        "round_finished",
        "run_finished",
    ]
    assert "the connection is lost" in result.stderr


def test_who_follows_a_silent_run_is_told_that_it_waits(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = threading.Event()

    def busy() -> Load:
        spoken.set()
        return Load(16.2, 2)

    monkeypatch.setattr(step_watch, "QUIET_S", 0.05)
    monkeypatch.setattr(step_watch, "load", busy)
    trains(served)
    served.service.cuts = [1, 1]
    served.service.on_cut = lambda: spoken.wait(60)
    result = invoke("run", "digits.yaml", "--run-id", "base", *served.options)
    assert result.exit_code == 0
    waiting = "waiting  for what the mediator tells of the run"
    assert any(waiting in each and "load 16.2" in each for each in result.stdout.splitlines())


def test_ctrl_c_detaches_and_says_how_to_attach(served: Served) -> None:
    service = served.service

    def train(run: str) -> None:
        service.say(run, started(run), a_round(1))

    service.on_submit, service.cuts = train, [2, 0]
    service.on_cut = lambda: None if service.cuts else os.kill(os.getpid(), signal.SIGINT)
    result = invoke("run", "digits.yaml", "--run-id", "base", *served.options)
    assert result.exit_code == 130
    assert "round 1/2" in result.stdout
    assert f"fedpilot runs attach base --mediator {served.address}" in result.stderr
    assert service.runs["base"]["status"] == "running"


def test_a_coordinator_that_died_without_a_word_has_an_end_too(served: Served) -> None:
    service = served.service

    def die(run: str) -> None:
        service.say(run, started(run))
        service.end(run, "failed", reason="its coordinator died 5 times", ended_at=None)

    service.on_submit = die
    result = invoke("run", "digits.yaml", "--run-id", "base", "--json", *served.options)
    assert result.exit_code == 1
    last = json.loads(result.stdout.splitlines()[-1])
    assert (last["event"], last["status"]) == ("run_finished", "failed")
    assert "its coordinator died 5 times" in result.stderr


def test_a_run_that_was_resumed_after_it_had_ended_ends_when_that_does(served: Served) -> None:
    service = served.service
    service.runs["base"] = a_run("base", status="finished")
    service.say("base", started("base"), finished("base", "interrupted", "stopped"))
    service.say("base", started("base", resumed=True), finished("base"))
    assert invoke("runs", "attach", "base", *served.options).exit_code == 0


def test_a_resumed_run_is_followed_from_where_it_was(served: Served) -> None:
    service = served.service
    service.runs["base"] = a_run("base", status="stopped")
    service.say("base", started("base"), finished("base", "interrupted", "stopped"))

    def train(run: str) -> None:
        service.say(run, started(run, resumed=True), a_round(2), finished(run))
        service.end(run, "finished")

    service.on_submit = train
    for arguments in (("runs", "resume", "base"), ("run", "--resume", "base")):
        service.end("base", "stopped")
        result = invoke(*arguments, *served.options)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.count("run base (resumed)") == 1
        assert "interrupted" not in result.stdout


def test_attaching_to_an_unknown_run_ends_with_2(served: Served) -> None:
    result = invoke("runs", "attach", "nobody", *served.options)
    assert result.exit_code == 2
    assert "no run nobody" in result.stderr


def test_attaching_to_a_mediator_that_is_away_ends_with_4(served: Served) -> None:
    options = ["--mediator", "127.0.0.1:1", "--credentials", str(served.credentials)]
    result = invoke("runs", "attach", "base", *options)
    assert result.exit_code == 4
    assert "fedpilot runs attach base" in result.stderr
