"""Batches: tasks that are alike wait together for one placement group, up to a limit."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from ...core.places.groups import GroupId
from ...core.records import ClusterId
from ...core.routing.pace import batch_limit
from ...core.routing.work import Work, WorkState, alike
from ...core.routing.work_table import WorkTable
from .task_times import TaskTimes, kind_of


class Batches:
    """The placement groups that tasks alike were promised last, and how many of them."""

    def __init__(self, works: WorkTable, times: TaskTimes) -> None:
        self._works = works
        self._times = times
        self._last: dict[tuple[ClusterId, Hashable], tuple[GroupId, int]] = {}

    def begin(self, work: Work) -> None:
        """A task waits for a placement group of its own, which others may wait for as well."""
        self._last[_batch(work)] = (work.group, 1)

    def join(self, work: Work) -> bool:
        """Have a task wait for the placement group of one like it; False if that has enough."""
        works, batch = self._works, _batch(work)
        waiting = sum(works.count(work.cluster, s) for s in (WorkState.HELD, WorkState.QUEUED))
        running = works.count(work.cluster, WorkState.PLACED)
        limit = batch_limit(waiting, running, self._times.task_s(kind_of(work)))
        group, size = self._last.get(batch, (work.group, limit))
        if size >= limit or group not in works.busy:
            return False
        works.put(replace(work, group=group, bundle=0, state=WorkState.QUEUED))
        self._last[batch] = (group, size + 1)
        return True

    def end(self, cluster: ClusterId) -> None:
        """A virtual cluster is about to end, with all its work."""
        for batch in [each for each in self._last if each[0] == cluster]:
            del self._last[batch]


def _batch(work: Work) -> tuple[ClusterId, Hashable]:
    """The same for tasks that may share a placement group."""
    return work.cluster, alike(work.demand, work.selector)
