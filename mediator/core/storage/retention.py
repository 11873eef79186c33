"""Decides which ended runs a mediator keeps: by age, number and size, with a reason per removal.

A failed or stopped run can be resumed, so it is removed by age alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The limits; None is no limit."""

    days: float | None = None
    """A run's age counts from its end, that of events and audit entries from when they happened."""
    runs: int | None = None
    """How many of the newest finished runs to keep."""
    nbytes: int | None = None
    """Bytes to keep in the folders of the newest finished runs."""

    def __bool__(self) -> bool:
        return (self.days, self.runs, self.nbytes) != (None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    id: str
    ended_at: float
    """Epoch seconds."""
    nbytes: int
    """Of its folder."""
    finished: bool
    """Whether there is nothing to resume."""


def outlived(runs: Iterable[EndedRun], now: float, rules: Retention) -> tuple[tuple[str, str], ...]:
    """The runs to remove, with reasons, in the order in which they ended."""
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
