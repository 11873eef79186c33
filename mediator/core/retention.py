"""Which runs a mediator keeps: by age, by number, by size; pure, each removal with its reason.

Only what has ended can go. A run that can be resumed, since it failed or was stopped, outlives the
number and the size that are kept: it goes by age alone, or when somebody removes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is kept; None is no limit."""

    days: float | None = None
    """A run is kept so long after its end; events and the audit so long after they happened."""
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
    """The runs that are kept no longer, by id, and why; the one that ended first comes first."""
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
