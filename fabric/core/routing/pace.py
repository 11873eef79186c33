"""Predicts how soon a placement group in use has room for one more task, from its finished tasks.

A short task waits in a group's queue, a task behind long ones for any free group (decision 31).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Hashable
from typing import Generic, TypeVar

from ..places.groups import GroupId

Kind = TypeVar("Kind", bound=Hashable)

SOON_S = 1.0
"""The longest queue of a group that may be rebundled, in seconds."""

BATCHES = 8
"""Into how many batches per running task the waiting tasks are divided."""

GUESS_S = 0.05
"""The assumed length of a task until the first of its kind has ended."""

HEARD_S = 0.01
"""The delay of the report that a task has ended, which is not part of the task's length."""

LEAST_S = 0.0005
"""The shortest assumed task: Ray spends this much on each."""


class Paces(Generic[Kind]):
    """How long tasks of each kind take, and when a task last began or ended in each group."""

    def __init__(self) -> None:
        self._task_s: dict[Kind, float] = {}
        self._moved: dict[GroupId, float] = {}

    @property
    def kinds(self) -> Collection[Kind]:
        """The kinds with a finished task."""
        return self._task_s.keys()

    def task_s(self, kind: Kind) -> float | None:
        """How long tasks of a kind take; None before the first has ended."""
        return self._task_s.get(kind)

    def began(self, group: GroupId, now: float) -> None:
        """Record that a task got its resources in a group."""
        self._moved[group] = now

    def ended(self, group: GroupId, kind: Kind, count: int, running: int, now: float) -> None:
        """Record that `count` tasks have ended in a group where `running` ran at once."""
        since, self._moved[group] = self._moved.get(group, now), now
        took = max(LEAST_S, (now - since - HEARD_S) * max(1, running) / count)
        before = self._task_s.get(kind, took)
        self._task_s[kind] = (before + took) / 2

    def wait_s(self, group: GroupId, kind: Kind, queued: int, slots: int, now: float) -> float:
        """Seconds until a group has room for one more task behind `queued` waiting ones.

        If nothing has ended for a while, the next end is expected after as long again.
        """
        if not slots:
            return math.inf
        idle_s = max(0.0, now - self._moved.setdefault(group, now))
        task_s = self._task_s.get(kind, max(idle_s, GUESS_S))
        return idle_s + (queued + 1) * task_s / slots

    def forget(self, *, but: Container[GroupId]) -> None:
        self._moved = {group: at for group, at in self._moved.items() if group in but}

    def end(self, kinds: Collection[Kind]) -> None:
        for kind in kinds:
            self._task_s.pop(kind, None)


def batch_limit(waiting: int, running: int, task_s: float | None = None) -> int:
    """How many short tasks may share the placement group that one of them waits for.

    The larger of two numbers: a share of all waiting tasks, so that groups are few and end close
    together (guided self-scheduling: Polychronopoulos and Kuck, 1987), and how many end soon.
    """
    soon = int(SOON_S / task_s) if task_s else 0
    return max(1, waiting // (BATCHES * max(1, running)), soon)
