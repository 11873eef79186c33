"""WaitingLine: why those wait that a plan did not start, and at which place in line.

A plan leaves thousands waiting, and few of them are asked after before the next plan. So reasons
become words, and places are counted, when the first one is asked after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from ..cluster_state import ClusterState
from ..places.admission import QueuedAt
from ..records import ClusterId
from .records import Pending, Reason, Rule, WorkloadId


class WaitingLine:
    """Those that wait at the root after a plan."""

    def __init__(
        self,
        state: ClusterState,
        waits: Sequence[Pending] = (),
        told: Mapping[ClusterId, str] | None = None,
    ) -> None:
        """`told` says why some wait although the plan has started them."""
        self._state = state
        self._waits = waits
        self._told = told or {}
        self._latest = state.latest
        """Who asks later has no place yet."""
        self._places: dict[str, dict[ClusterId, int]] = {}
        """By project."""

    def get(self, id: ClusterId) -> QueuedAt | None:
        """Its place and the reason; None if it does not wait, or has asked after the plan."""
        entry = self._state.entries.get(id)
        if entry is None or not entry.waiting:
            return None
        place = self._places_in(entry.request.project).get(id)
        if place is None:
            return None
        if entry.promised:
            return QueuedAt(entry.request, place, waits_for(self._state, id))
        reason = self._reasons.get(WorkloadId(id))
        words = self._told.get(id) or ("" if reason is None else _in_words(reason))
        return QueuedAt(entry.request, place, words)

    def rule(self, id: ClusterId) -> Rule | None:
        """By which rule the plan left it waiting; None if it did not."""
        reason = None if id in self._told else self._reasons.get(WorkloadId(id))
        return None if reason is None else reason.rule

    @cached_property
    def _reasons(self) -> dict[WorkloadId, Reason]:
        return {id: wait.reason for wait in self._waits for id in wait.workloads}

    def _places_in(self, project: str) -> dict[ClusterId, int]:
        """The places of those of a project, by priority, then by age."""
        if project not in self._places:
            state = self._state
            line = state.in_order(state.index.in_line.get(project, ()))
            line = [each for each in line if state.order[each.request.id] <= self._latest]
            line.sort(key=lambda each: -each.request.priority)
            self._places[project] = {e.request.id: place for place, e in enumerate(line, 1)}
        return self._places[project]


def waits_for(state: ClusterState, claimant: ClusterId) -> str:
    """Whom a claimant waits for."""
    victims = [
        each.request.id if notice.node is None else notice.node
        for each in state.in_order(state.index.moving)
        for notice in each.notices
        if notice.claimant == claimant
    ]
    if not victims:
        return "its places are promised to it, and others still hold them"
    return f"it gets the places of {', '.join(victims)} as soon as they have left"


def _in_words(reason: Reason) -> str:
    return reason.text if reason.rule in (Rule.NO_ROOM, Rule.NEVER) else str(reason)
