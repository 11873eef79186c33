"""Chooses the fastest execution from what `fedpilot tune` measured, or says why it cannot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .facts import Execution

APART = 1.5
"""Median ratio of wall to CPU time above which the machine is too busy to measure."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One measurement: seconds for a step of one client."""

    cpu_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class TunedExecution:
    """The fastest execution, and what each takes."""

    fastest: Execution
    seconds: Mapping[Execution, float]
    """Least measured CPU time for a step of one client."""


class Disturbed(Exception):
    """The machine is too busy for reliable measurements."""


def judged(timings: Mapping[Execution, Sequence[Timing]]) -> TunedExecution:
    """The execution with the least CPU time; raises Disturbed where wall and CPU time differ."""
    every = [timing for each in timings.values() for timing in each]
    apart = statistics.median(timing.wall_s / max(timing.cpu_s, 1e-9) for timing in every)
    if apart > APART:
        raise Disturbed(
            f"measurements lasted {apart:.1f} times their CPU time, more than {APART} times: other "
            "processes use this machine; try again when they have ended"
        )
    seconds = {way: min(timing.cpu_s for timing in each) for way, each in timings.items()}
    return TunedExecution(min(seconds, key=seconds.__getitem__), seconds)
