"""What runs beyond the virtual cluster of its job is named, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpilot.fabric import ClusterId, Resources, SchedulingPolicy, VNodeId
from fedpilot.fabric.core.audit import Running, escapes, jobs_in
from fedpilot.fabric.core.cluster_state import ClusterState, Entry, JobId
from fedpilot.fabric.core.ledger import Ledger
from fedpilot.fabric.core.places.groups import CarriedBundle, GroupId, PlacementGroupRecord
from fedpilot.fabric.core.places.request import Request
from fedpilot.fabric.core.records import ROOT, PlacedCluster, WorkId
from fedpilot.fabric.core.routing.work import Work
from fedpilot.fabric.testing.fake_cluster import fake_machine

ONE = Resources.of({"CPU": 1})
JOB, PLAIN = JobId("01"), JobId("02")


@pytest.fixture
def state() -> ClusterState:
    """A job in `job`, which has `child` inside; `other` is somebody else's."""
    found = ClusterState(Ledger([fake_machine("m", CPU=8)]))
    for name, parent in (("job", ROOT), ("child", ClusterId("job")), ("other", ROOT)):
        id = ClusterId(name)
        found.ledger.begin(PlacedCluster(id=id, parent=parent), ())
        jobs = frozenset({JOB}) if name == "job" else frozenset[JobId]()
        found.add(Entry(request=Request(id=id, parent=parent), jobs=jobs, waiting=False))
        piece = CarriedBundle(vnode=VNodeId(f"{name}/0"), resources=ONE)
        policy = SchedulingPolicy.PACK
        found.groups.put(
            PlacementGroupRecord(id=GroupId(name), cluster=id, policy=policy, pieces=(piece,))
        )
    promised = Work(
        id=WorkId("promised"),
        number=1,
        cluster=ClusterId("job"),
        demand=ONE,
        group=GroupId("promised"),
    )
    found.works.put(promised)
    return found


def running(
    group: str | None, *, job: JobId = JOB, kind: str = "task", holds: Resources = ONE
) -> Running:
    where = None if group is None else GroupId(group)
    return Running(job=job, kind=kind, id="x", name="f", group=where, resources=holds)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        pytest.param(running("job"), None, id="its own placement group"),
        pytest.param(running("child"), None, id="one of those inside it"),
        pytest.param(running("promised"), None, id="one that it was promised"),
        pytest.param(running("past"), None, id="one that is gone, of whose end Ray tells late"),
        pytest.param(running(None, holds=Resources()), None, id="what holds nothing"),
        pytest.param(running("other", job=PLAIN), None, id="a job that is in no virtual cluster"),
        pytest.param(
            running("other"),
            "task f of job 01 holds 1 CPU in placement group other, not its own",
            id="somebody else's",
        ),
        pytest.param(
            running(None, kind="actor"), "actor f of job 01 holds 1 CPU in no group", id="none"
        ),
    ],
)
def test_what_gets_out_is_named(state: ClusterState, what: Running, reason: str | None) -> None:
    found = escapes(state, jobs_in(state), [what], past={GroupId("past")})
    assert [each.reason for each in found] == ([] if reason is None else [reason])
    assert all(each.cluster == "job" for each in found)


SPOKEN, SILENT, STRANGE = JobId("03"), JobId("04"), JobId("05")


@pytest.mark.parametrize(
    ("named", "attached", "found"),
    [
        pytest.param({SILENT: "other"}, {}, {SILENT: "other"}, id="what Ray was told of it counts"),
        pytest.param({}, {SPOKEN: "child"}, {SPOKEN: "child"}, id="what it said counts"),
        pytest.param(
            {SPOKEN: "other"},
            {SPOKEN: "child"},
            {SPOKEN: "child"},
            id="it began another than it was started in",
        ),
        pytest.param({STRANGE: "gone"}, {}, {}, id="a virtual cluster that is no more"),
    ],
)
def test_whose_jobs_are_looked_at(
    state: ClusterState,
    named: dict[JobId, str],
    attached: dict[JobId, str],
    found: dict[JobId, str],
) -> None:
    for job, name in attached.items():
        entry = state.entries[ClusterId(name)]
        state.add(replace(entry, jobs=entry.jobs | {job}))
    assert jobs_in(state, named) == {JOB: "job", **found}
