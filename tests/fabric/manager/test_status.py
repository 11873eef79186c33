"""How long a virtual cluster rests for which Ray had no room, however often that was so before."""

from __future__ import annotations

from fedpilot.fabric.core.cluster_state import ClusterState
from fedpilot.fabric.core.records import ClusterId
from fedpilot.fabric.manager.status import Statuses
from fedpilot.fabric.testing.fake_cluster import ManualClock

JOB = ClusterId("job")


def rests(statuses: Statuses, clock: ManualClock, rest_s: float) -> float:
    """For how long it rests once it is taken back."""
    statuses.waits_again(JOB, "others were faster", rest_s)
    began = clock()
    while statuses.resting:
        clock.advance(0.5)
    return clock() - began


def test_it_rests_twice_as_long_each_time_until_it_has_begun() -> None:
    clock = ManualClock(1000.0)
    statuses = Statuses(ClusterState(), clock)
    statuses.starts(JOB)
    assert [rests(statuses, clock, 1.5) for _ in range(6)] == [1.5, 3.0, 6.0, 12.0, 24.0, 30.0]
    statuses.admitted(JOB)
    statuses.active(JOB)
    statuses.starts(JOB)
    assert rests(statuses, clock, 1.5) == 1.5
