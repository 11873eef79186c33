"""Which ended runs a mediator keeps: by age, number and size, with a reason for each removal.

A run that can be resumed, since it failed or was stopped, is removed by age alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The limits; None is no limit."""

    days: float | None = None
    """For a run after its end; for events and audit entries from when they happened."""
    runs: int | None = None
    """The newest finished runs."""
    nbytes: int | None = None
    """Bytes of the folders of finished runs, the newest first."""

    def __bool__(self) -> bool:
        return (self.days, self.runs, self.nbytes) != (None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """A run that has ended."""

    id: str
    ended_at: float
    """Epoch seconds."""
    nbytes: int
    """Of its folder."""
    finished: bool
    """Whether there is nothing to resume."""


def outlived(runs: Iterable[EndedRun], now: float, rules: Retention) -> tuple[tuple[str, str], ...]:
    """The ids of runs to remove, and why; the one that ended first comes first."""
    gone: dict[str, str] = {}
    newest = sorted(runs, key=lambda run: (-run.ended_at, run.id))
    number, nbytes = 0, 0
    for run in newest:
        if rules.days is not None and now - run.ended_at > rules.days * DAY_S:
            gone[run.id] = f"it ended more than {rules.days:g} days ago"
            continue
        if not run.finished:
            continue
        if rules.runs is not None and number >= rules.runs:
            gone[run.id] = f"{rules.runs} newer runs are kept"
            continue
        if rules.nbytes is not None and nbytes + run.nbytes > rules.nbytes:
            gone[run.id] = f"with the newer runs it has more than {rules.nbytes} bytes"
            continue
        number, nbytes = number + 1, nbytes + run.nbytes
    return tuple((run.id, gone[run.id]) for run in reversed(newest) if run.id in gone)
