"""Judges what `fedpilot tune` measured: the fastest execution, or why there is no verdict."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .facts import Execution

APART = 1.5
"""Times its CPU time that a measurement may last; longer ones count as disturbed."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One measurement: seconds for a step of one client."""

    cpu_s: float
    """CPU time of the thread."""
    wall_s: float


@dataclass(frozen=True, slots=True)
class TunedExecution:
    """The fastest execution, and what each takes."""

    fastest: Execution
    seconds: Mapping[Execution, float]
    """CPU time for a step of one client, the least that was measured."""


class Disturbed(Exception):
    """The machine is too busy for reliable measurements."""


def judged(timings: Mapping[Execution, Sequence[Timing]]) -> TunedExecution:
    """The execution of the least CPU time; Disturbed where wall and CPU time part."""
    every = [timing for each in timings.values() for timing in each]
    apart = statistics.median(timing.wall_s / max(timing.cpu_s, 1e-9) for timing in every)
    if apart > APART:
        raise Disturbed(
            f"measurements lasted {apart:.1f} times their CPU time, more than {APART} times: other "
            "processes use this machine; try again when they have ended"
        )
    seconds = {way: min(timing.cpu_s for timing in each) for way, each in timings.items()}
    return TunedExecution(min(seconds, key=seconds.__getitem__), seconds)
