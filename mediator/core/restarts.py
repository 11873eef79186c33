"""Decides whether a process that died is started again: after a growing pause, within a budget.

One budget counts deaths within a window. Another counts deaths at one place of the work at any
time: without it, a crash that recurs more slowly than the window would repeat forever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartSettings:
    """Budgets and pauses. Times are in seconds."""

    most: int = 5
    """Restarts within the window."""
    window_s: float = 600.0
    first_pause_s: float = 0.5
    """Before the first restart of a window; doubles with each up to `longest_pause_s`."""
    longest_pause_s: float = 20.0
    most_at_a_place: int = 3
    """Deaths at one place of the work after which there is no restart."""


@dataclass(frozen=True, slots=True)
class Death:
    """The abnormal end of a process."""

    at: float
    place: str
    """What it was doing, such as `work of round 3`; empty if idle."""
    cause: str
    """How it ended, such as `was killed by SIGKILL`."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the next process at `at` or later."""

    at: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Start no more processes."""

    reason: str


def next_start(deaths: Sequence[Death], settings: RestartSettings) -> Restart | GiveUp:
    """Decide whether and when to start a process after these deaths, oldest first."""
    if not deaths:
        return Restart(float("-inf"))
    last = deaths[-1]
    here = sum(each.place == last.place for each in deaths) if last.place else 0
    if here >= settings.most_at_a_place:
        return GiveUp(f"it {last.cause}, and died {here} times at {last.place}")
    pause = pause_before_restart([each.at for each in deaths], last.at, settings)
    if pause is None:
        recent = sum(each.at > last.at - settings.window_s for each in deaths)
        return GiveUp(f"it {last.cause}, and died {recent} times within {settings.window_s:g} s")
    return Restart(last.at + pause)


def pause_before_restart(
    deaths: Sequence[float], now: float, settings: RestartSettings
) -> float | None:
    """Seconds before the next restart after all `deaths`, or None if the budget is used up."""
    recent = [at for at in deaths if at > now - settings.window_s]
    if len(recent) > settings.most:
        return None
    doublings = max(0, len(recent) - 1)
    return min(settings.longest_pause_s, settings.first_pause_s * 2.0**doublings)
