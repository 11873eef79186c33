"""TaskTimes: how long tasks of each kind (one function, the same needs and cluster) take."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable

from ...core.cluster_state import ClusterState
from ...core.places.groups import GroupId, PlacementGroupRecord
from ...core.records import ClusterId
from ...core.resources import Resources
from ...core.routing.pace import Paces
from ...core.routing.scheduling import slots
from ...core.routing.work import Work, alike
from .messages import Ask

PROOF_S = 0.1
"""How long the first task of a short kind may take: as long as Ray takes to make a group."""

Kind = tuple[ClusterId, str, Hashable]


def kind_of(work: Work | Ask) -> Kind:
    """A key that is equal for tasks that are assumed to take equally long."""
    return work.cluster, work.function, alike(work.demand, work.selector)


class TaskTimes:
    """The running and ended tasks, by kind."""

    def __init__(self, state: ClusterState, clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock
        self._paces: Paces[Kind] = Paces()
        self._begun: dict[Kind, float] = {}
        """When the first task began, for kinds of which none has ended yet."""
        self._first_ends: dict[Kind, asyncio.Event] = {}

    def task_s(self, kind: Kind) -> float | None:
        """How long tasks of a kind take; None before the first has ended."""
        return self._paces.task_s(kind)

    def waits(self, ask: Ask) -> Callable[[PlacementGroupRecord], float]:
        """Return a function that predicts how long a task waits in a group's queue."""
        works, kind, now = self._state.works, kind_of(ask), self._clock()

        def wait_s(group: PlacementGroupRecord) -> float:
            at_once = slots(group, ask.demand, works.lasting)
            return self._paces.wait_s(group.id, kind, works.queued.get(group.id, 0), at_once, now)

        return wait_s

    def first_end(self, kind: Kind) -> asyncio.Event | None:
        """Set when the first task of a kind ends; None unless it runs and may still prove short."""
        began = self._begun.get(kind)
        if began is None or self._paces.task_s(kind) is not None or self._clock() > began + PROOF_S:
            return None
        return self._first_ends.setdefault(kind, asyncio.Event())

    def began(self, work: Work) -> None:
        """Record that work has its resources in its group."""
        self._paces.began(work.group, self._clock())
        if not work.lasting and self._paces.task_s(kind_of(work)) is None:
            self._begun.setdefault(kind_of(work), self._clock())

    def ended(self, ended: Iterable[Work]) -> None:
        """Learn from ended tasks how long their kinds take."""
        state, counts = self._state, Counter[tuple[GroupId, Kind, Resources]]()
        for work in ended:
            if work.group in state.groups and not work.lasting:
                counts[work.group, kind_of(work), work.demand] += 1
        for (group, kind, demand), count in counts.items():
            at_once = state.works.running(state.groups[group], demand)
            self._paces.ended(group, kind, count, at_once, self._clock())
            self._first_has_ended(kind)

    def _first_has_ended(self, kind: Kind) -> None:
        self._begun.pop(kind, None)
        if kind in self._first_ends:
            self._first_ends.pop(kind).set()

    def forget_groups(self) -> None:
        """Forget the placement groups that are gone."""
        self._paces.forget(but=self._state.groups)

    def end(self, cluster: ClusterId) -> None:
        """Forget a virtual cluster that is about to end."""
        self._paces.end([kind for kind in self._paces.kinds if kind[0] == cluster])
        for kind in [each for each in {**self._begun, **self._first_ends} if each[0] == cluster]:
            self._first_has_ended(kind)
