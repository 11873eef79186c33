"""A process that died is started again, but not for ever."""

from __future__ import annotations

import pytest

from fedpilot.mediator.core.restarts import (
    Death,
    GiveUp,
    Restart,
    RestartSettings,
    next_start,
    pause_before_restart,
)

SETTINGS = RestartSettings(
    most=4, window_s=100.0, first_pause_s=1.0, longest_pause_s=3.0, most_at_a_place=3
)


def deaths(*ends: tuple[float, str]) -> list[Death]:
    return [Death(at, place, "was killed by SIGKILL") for at, place in ends]


@pytest.mark.parametrize(
    ("found", "at"),
    [
        pytest.param(deaths((50.0, "")), 51.0, id="after a short pause"),
        pytest.param(deaths((40.0, ""), (50.0, "")), 52.0, id="pauses grow"),
        pytest.param(deaths((20.0, "a"), (40.0, "a"), (50.0, "b")), 53.0, id="up to the longest"),
        pytest.param(deaths((-90.0, ""), (50.0, "")), 51.0, id="old deaths cost no pause"),
    ],
)
def test_the_next_one_is_started_after_a_pause(found: list[Death], at: float) -> None:
    assert next_start(found, SETTINGS) == Restart(at)


def test_the_first_one_is_started_at_once() -> None:
    assert next_start([], SETTINGS) == Restart(float("-inf"))


def test_a_budget_within_a_window() -> None:
    found = next_start(deaths(*((10.0 * n, "") for n in range(5))), SETTINGS)
    assert found == GiveUp("it was killed by SIGKILL, and died 5 times within 100 s")


def test_a_crash_that_repeats_at_a_place_is_the_last_however_slowly_it_comes() -> None:
    slow = deaths(*((1e4 * n, "work of round 3") for n in range(3)))
    assert isinstance(next_start(slow[:2], SETTINGS), Restart)
    found = next_start(slow, SETTINGS)
    assert found == GiveUp("it was killed by SIGKILL, and died 3 times at work of round 3")


def test_deaths_at_another_place_in_between_do_not_hide_it() -> None:
    found = deaths((0.0, "work"), (1e4, "start"), (2e4, "work"), (3e4, "start"), (4e4, "work"))
    assert isinstance(next_start(found, SETTINGS), GiveUp)


def test_deaths_without_a_place_are_not_at_one() -> None:
    assert isinstance(next_start(deaths(*((1e4 * n, "") for n in range(9))), SETTINGS), Restart)


COORDINATORS = RestartSettings(most=3, window_s=100.0, first_pause_s=1.0, longest_pause_s=3.0)


@pytest.mark.parametrize(
    ("deaths", "pause"),
    [
        pytest.param([50.0], 1.0, id="the first death is followed by a short pause"),
        pytest.param([40.0, 50.0], 2.0, id="pauses grow"),
        pytest.param([30.0, 40.0, 50.0], 3.0, id="up to the longest"),
        pytest.param([20.0, 30.0, 40.0, 50.0], None, id="the budget is used up"),
        pytest.param([-90.0, -80.0, -70.0, 50.0], 1.0, id="old deaths do not count"),
    ],
)
def test_a_coordinator_is_started_again_within_a_budget(
    deaths: list[float], pause: float | None
) -> None:
    assert pause_before_restart(deaths, 50.0, COORDINATORS) == pause
