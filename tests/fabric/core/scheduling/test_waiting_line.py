"""Which place in line a virtual cluster has after a plan, and why it waits."""

from __future__ import annotations

from fedpilot.fabric import ClusterId
from fedpilot.fabric.core.cluster_state import ClusterState, Entry
from fedpilot.fabric.core.places.request import Request
from fedpilot.fabric.core.scheduling.records import Pending, Reason, Rule, WorkloadId
from fedpilot.fabric.core.scheduling.waiting_line import WaitingLine


def asks(state: ClusterState, name: str, project: str, priority: int = 0) -> ClusterId:
    request = Request(id=ClusterId(name), project=project, priority=priority)
    state.add(Entry(request=request))
    return request.id


def test_places_are_by_priority_then_age_within_a_project() -> None:
    state = ClusterState()
    first, other, urgent = asks(state, "a", "p"), asks(state, "b", "q"), asks(state, "c", "p", 1)
    full = Pending(tuple(map(WorkloadId, "abc")), Reason(Rule.NO_ROOM, "no room"))
    line = WaitingLine(state, [full])
    found = {id: line.get(id) for id in (first, other, urgent)}
    places = {id: each and (each.position, each.reason) for id, each in found.items()}
    assert places == {"a": (2, "no room"), "b": (1, "no room"), "c": (1, "no room")}


def test_who_asks_after_the_plan_has_no_place_yet() -> None:
    state = ClusterState()
    first = asks(state, "a", "p")
    line = WaitingLine(state)
    later, elsewhere = asks(state, "b", "p"), asks(state, "c", "q")
    assert line.get(later) is None
    assert line.get(elsewhere) is None
    assert (found := line.get(first)) is not None
    assert found.position == 1
