"""The index of the entries follows them, and all inside a virtual cluster is found."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, strategies as st

from fedpilot.fabric import ClusterId
from fedpilot.fabric.core.cluster_state import ClusterState, Entry, JobId, Notice
from fedpilot.fabric.core.places.request import Request
from fedpilot.fabric.core.records import ROOT, BundleGroup, ProcessId, SchedulingPolicy

NAMES = [ClusterId(name) for name in "abcd"]
JOBS = [JobId("01"), JobId("02")]


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    group = BundleGroup(bundles=(), policy=SchedulingPolicy.PACK, most=draw(st.integers(0, 1)))
    request = Request(
        id=draw(st.sampled_from(NAMES)),
        parent=draw(st.sampled_from([ROOT, *NAMES])),
        groups=draw(st.sampled_from([(), (group,)])),
        deadline=draw(st.none() | st.just(1.0)),
    )
    notice = Notice(at=1.0, claimant=None, rule="stale", reason="")
    return Entry(
        request=request,
        waiting=draw(st.booleans()),
        leaves=draw(st.none() | st.just(notice)),
        owner=draw(st.none() | st.sampled_from(JOBS)),
        jobs=draw(st.frozensets(st.sampled_from(JOBS))),
        process=draw(st.none() | st.just(ProcessId("p"))),
    )


@given(st.lists(entries() | st.sampled_from(NAMES), max_size=20))
def test_the_index_is_that_of_the_entries(steps: Sequence[Entry | ClusterId]) -> None:
    state = ClusterState()
    for step in steps:
        if isinstance(step, Entry):
            state.add(step)
        else:
            state.remove(step)
        assert vars(state.index) == vars(ClusterState(entries=state.entries.values()).index)
        assert state.order.keys() == state.entries.keys()
        assert state.in_order(state.entries) == list(state.entries.values())


def test_all_inside_a_virtual_cluster_comes_parents_first() -> None:
    state = ClusterState()
    for name, parent in (("a", ROOT), ("b", ClusterId("a")), ("c", ROOT), ("d", ClusterId("b"))):
        state.add(Entry(request=Request(id=ClusterId(name), parent=parent)))
    state.add(Entry(request=Request(id=ClusterId("b"), parent=ClusterId("a")), user="later"))
    assert [each.request.id for each in state.within(ClusterId("a"))] == ["a", "b", "d"]
    assert [each.request.id for each in state.all_inside(["b", "c"])] == ["d"]
    assert [each.id for each in state.waiting_inside] == ["b", "d"]
