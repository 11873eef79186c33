"""Deaths: counts the deaths of a run's runners at a site, and decides whether another starts.

Agents and processes with local sites use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...core.restarts import Death, GiveUp, RestartSettings, next_start
from ...errors import RunnerDied, RunnersSpent
from .process import RunnerProcess

AT_ITS_START = "its start"
"""The place of a death before the runner listens."""
WORKS = ("work", "")
"""Verbs of work; orders adopted from an earlier agent have an empty one."""


class Deaths:
    """The deaths of one run's runners at one site."""

    def __init__(self, site: str, settings: RestartSettings, clock: Callable[[], float]) -> None:
        self._site, self._settings, self._clock = site, settings, clock
        self._found: list[Death] = []

    def __len__(self) -> int:
        return len(self._found)

    def died(self, process: RunnerProcess, place: str, how: str) -> RunnerDied:
        """Count a death; return the error for the runner's open orders."""
        self._found.append(Death(self._clock(), place, how))
        reason = f"its runner {how}{process.quoted()}"
        step = next_start(self._found, self._settings)
        if isinstance(step, GiveUp):
            why = f"its runner is not started again for this run, since {step.reason}"
            return RunnersSpent(self._site, f"{why}{process.quoted()}")
        return RunnerDied(self._site, reason)

    def pause_s(self) -> float:
        """Seconds until the next runner may start; RunnersSpent if none may."""
        step = next_start(self._found, self._settings)
        if isinstance(step, GiveUp):
            raise RunnersSpent(self._site, f"its runner is not started again: {step.reason}")
        return max(0.0, step.at - self._clock())


def place_of(orders: Iterable[tuple[str, int]]) -> str:
    """What a runner is doing, from the verbs and rounds of its open orders; empty if idle."""
    there = [(verb, number) for verb, number in orders if verb != "release"]
    if rounds := [number for verb, number in there if verb in WORKS]:
        return f"work of round {max(rounds)}"
    return " and ".join(sorted({verb for verb, _ in there}))
