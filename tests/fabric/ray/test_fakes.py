"""The fake fails on order."""

from __future__ import annotations

import pytest

from fedpilot.fabric import (
    FixedSizeNode,
    FixedSizeNodes,
    VirtualCluster,
    VirtualClusterManager,
    Worker,
    WorkerLost,
)
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine


class Counter:
    def __init__(self) -> None:
        self._count = 0

    def step(self) -> int:
        self._count += 1
        return self._count


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster([fake_machine("a", CPU=1)])


@pytest.fixture
def worker(cluster: FakeCluster) -> Worker:
    nodes = FixedSizeNodes(nodes=(FixedSizeNode(resources={"CPU": 1}),))
    gang = VirtualClusterManager(cluster).reserve(
        VirtualCluster(fixed_size_nodes=(nodes,)), name="run"
    )
    return gang.start_worker(gang.vnodes[0], Counter)


def test_the_nth_call_kills_and_takes_those_behind_it(cluster: FakeCluster, worker: Worker) -> None:
    cluster.faults.kill_at("step", 2)
    calls = [worker.call("step") for _ in range(3)]
    assert calls[0].result(60) == 1
    assert isinstance(calls[1].exception(60), WorkerLost)
    assert isinstance(calls[2].exception(60), WorkerLost)


def test_a_worker_is_killed_by_name(cluster: FakeCluster, worker: Worker) -> None:
    cluster.kill_worker(worker.name)
    assert isinstance(worker.call("step").exception(60), WorkerLost)
    with pytest.raises(LookupError):
        cluster.kill_worker("nobody")
