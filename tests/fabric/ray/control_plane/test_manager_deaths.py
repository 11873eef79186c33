"""Ray's lines about the death of a manager are not printed; all others are."""

from __future__ import annotations

import re
from collections.abc import Collection

import pytest
from ray._private.ray_logging import LogDeduplicator

from fedpilot.fabric.ray.control_plane.manager_deaths import ManagerDeaths

MANAGER, OTHER = "a1" * 28, "b2" * 28


def death(worker: str) -> str:
    return (
        "A worker died or was killed while executing a task by an unexpected system error. To "
        f"troubleshoot the problem, check the logs. Lease ID: 00 Worker ID: {worker} Node ID: c9 "
        "Worker PID: 20847 Worker exit type: SYSTEM_ERROR"
    )


def known(manager: str) -> Collection[str]:
    return {"00" * 28, MANAGER} if manager == "m" else ()


def away(manager: str) -> Collection[str]:
    raise ConnectionError("Ray is away")


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        pytest.param(death(MANAGER), False, id="the manager's death"),
        pytest.param(death(OTHER), True, id="another's death"),
        pytest.param(f"Worker ID: {MANAGER} says hello", True, id="something else of it"),
        pytest.param("noise that the user does not want", False, id="what the user skips"),
    ],
)
def test_only_the_death_of_a_manager_is_not_printed(line: str, printed: bool) -> None:
    filtering = ManagerDeaths(re.compile("^noise"), known)
    filtering.add("another")
    filtering.add("m")
    ray = LogDeduplicator(5, None, None)
    ray.skip_re = filtering
    (batch,) = ray.deduplicate({"lines": [line], "pid": "raylet", "is_err": False})
    assert batch["lines"] == ([line] if printed else [])


def test_a_death_is_printed_where_nobody_can_say_whose_it_is() -> None:
    filtering = ManagerDeaths(None, away)
    filtering.add("m")
    assert not filtering.search(death(MANAGER))
