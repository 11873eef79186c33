"""Reconstruction: work whose result was lost and that Ray runs again on its own (lineage).

Ray waits for the placement group that the work had, and no process reports the end of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from ...core.cluster_state import ClusterState
from ...core.places.groups import GroupId, was_made_for
from ...core.records import ClusterId, WorkId
from ...core.routing.work import NOBODY

SURE_S = 1.0
"""How long Ray must wait for a group before it is made again: its view of what waits is stale."""
REBUILT_S = 5.0
"""When such work counts as over, if nothing runs in its placement group."""


class Reconstruction:
    """The placement groups that Ray waits for and nobody knows, and the work in those remade."""

    def __init__(self, state: ClusterState, clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock
        self._missed: dict[GroupId, float] = {}
        """Since when each placement group was missed."""
        self._seen: dict[WorkId, float] = {}
        """When Ray last ran work once more, or waited to."""

    def missed(self, wanted: Iterable[GroupId]) -> list[tuple[GroupId, ClusterId]]:
        """The placement groups to make once more, with the virtual clusters that they belong to."""
        state, now = self._state, self._clock()
        unknown = {
            group for group in wanted if group not in state.groups and group not in state.works.busy
        }
        self._missed = {group: self._missed.get(group, now) for group in unknown}
        sure = [group for group, since in self._missed.items() if now >= since + SURE_S]
        owners = [id for id, e in state.entries.items() if not (e.waiting or e.group)]
        of = {group: [id for id in owners if was_made_for(id, group)] for group in sure}
        return [(group, ids[0]) for group, ids in of.items() if ids]

    def over(self, wanted: Container[GroupId], in_use: Container[GroupId]) -> list[WorkId]:
        """The work that is over: for a while Ray has neither waited for its group nor used it."""
        now, works = self._clock(), self._state.works.of_owner(NOBODY)
        self._seen = {
            work.id: now
            if work.group in wanted or work.group in in_use
            else self._seen.get(work.id, now)
            for work in works
        }
        return [id for id, at in self._seen.items() if now > at + REBUILT_S]
