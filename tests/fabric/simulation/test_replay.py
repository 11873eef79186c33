"""Virtual time: work arrives, waits, runs, is stopped, and ends."""

from __future__ import annotations

from typing import Any

import pytest

from fedpilot.fabric.simulation.case_schema import SettleCase
from fedpilot.fabric.simulation.play import play


def replay(*workloads: dict[str, Any], quotas: tuple[int, ...] = (2, 0)) -> dict[str, Any]:
    """Replay workloads of one GPU, unless they say otherwise, on a machine of two."""
    case = {
        "id": "replay",
        "kind": "settle",
        "nodes": [{"name": "n1", "capacity": {"gpu": 2}}],
        "projects": [
            {"name": name, "quota": {"default": {"gpu": quota}}}
            for name, quota in zip("AB", quotas, strict=True)
        ],
        "workloads": [
            {"project": "A", "member_request": {"gpu": 1}, "runs_s": 10.0, **each}
            for each in workloads
        ],
    }
    return play(SettleCase.model_validate(case))


def test_who_finds_no_room_waits_for_an_end() -> None:
    answer = replay({"id": "a"}, {"id": "b"}, {"id": "c", "arrives_s": 4.0})
    assert [(each["at_s"], each["workload"]) for each in answer["decisions"]] == [
        (0.0, "a"),
        (0.0, "b"),
        (10.0, "c"),
    ]
    assert answer["replay"]["ends_s"] == 20.0
    assert answer["replay"]["utilisation"] == {"default": {"gpu": 0.75}}
    waits = answer["replay"]["projects"]["A"]
    assert (waits["finished"], waits["waited_longest_s"], waits["waited_mean_s"]) == (3, 6.0, 2.0)


def test_what_was_stopped_runs_its_whole_time_again() -> None:
    answer = replay(
        {"id": "b", "project": "B", "member_request": {"gpu": 2}},
        {"id": "a", "arrives_s": 5.0},
    )
    assert answer["replay"]["ends_s"] == 25.0
    assert answer["replay"]["projects"]["B"]["stopped_members"] == 1
    assert answer["stopped"] == {"a": 0, "b": 1}


def test_a_round_takes_place_at_the_next_period() -> None:
    (start,) = replay({"id": "a", "arrives_s": 3.2})["decisions"]
    assert start["at_s"] == 4.0


def test_a_workload_that_never_ends_ends_no_replay() -> None:
    answer = replay({"id": "a", "runs_s": None, "arrives_s": 7.0})
    assert answer["running"] == {"a": 1}
    assert answer["replay"]["ends_s"] == pytest.approx(8.0)


def test_work_that_runs_at_the_start_ends_too() -> None:
    answer = replay({"id": "a", "running_on": ["n1"]})
    assert answer["decisions"] == []
    assert answer["replay"]["projects"]["A"]["finished"] == 1
