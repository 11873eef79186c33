"""What every cluster does, Ray and its fake alike: groups, workers, calls, and their ends."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fedpilot.fabric import (
    Bundle,
    Cluster,
    ClusterId,
    GangExists,
    GangInfeasible,
    GangTimeout,
    Group,
    GroupState,
    MachineId,
    RayCluster,
    Resources,
    SchedulingPolicy,
    VirtualClusterManager,
    VNode,
    VNodeId,
    WarmCluster,
    Worker,
    WorkerFailed,
    WorkerLost,
    most,
)
from fedpilot.fabric.spec import FixedSizeNode, FixedSizeNodes, VirtualCluster
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine

PATIENCE_S = 150.0
ONE_CPU = Bundle(resources=Resources.of({"CPU": 1}))


@pytest.fixture(
    scope="module",
    params=["fake", "warm", pytest.param("ray", marks=pytest.mark.ray)],
)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two CPUs on one machine."""
    if request.param == "fake":
        yield FakeCluster([fake_machine("a", CPU=2)])
        return
    if request.param == "warm":
        yield WarmCluster(FakeCluster([fake_machine("a", CPU=2)]))
        return
    with RayCluster.embedded(num_cpus=2, num_gpus=0, object_store_memory=100 * 2**20) as cluster:
        yield cluster


@pytest.fixture
def group(cluster: Cluster) -> Iterator[Group]:
    group = cluster.create_group("contract", [ONE_CPU], SchedulingPolicy.PACK)
    try:
        assert group.wait(PATIENCE_S) is not None
        yield group
    finally:
        group.remove()


@pytest.fixture
def start(group: Group) -> Callable[..., Worker]:
    def start(name: str = "contract/0/0", *args: Any) -> Worker:
        vnode = VNode(
            id=VNodeId("contract/0"),
            cluster=ClusterId("contract"),
            parent=MachineId("any"),
            machine=MachineId("any"),
            resources=ONE_CPU.resources,
        )
        return group.start_worker(vnode, 0, name, Diary, args)

    return start


class Diary:
    """A worker that remembers what it was told, in order."""

    def __init__(self, *lines: Any) -> None:
        if "refuse" in lines:
            raise ValueError("bad first line: refuse")
        self._lines = list(lines)

    def write(self, line: Any) -> None:
        self._lines.append(line)

    def read(self) -> list[Any]:
        return self._lines

    def note(self) -> None:
        self.noted = True

    def names(self) -> list[str]:
        return list(vars(self))

    def trip(self) -> None:
        raise Tripped("over", 3)

    def hang(self) -> None:
        threading.Event().wait(PATIENCE_S)

    def niceness(self) -> int:
        return os.nice(0)

    def thread(self) -> tuple[int, int]:
        return os.getpid(), threading.get_ident()


class Tripped(Exception):
    """An error with more than one argument."""


def end_of(call: Any) -> BaseException:
    error = call.exception(PATIENCE_S)
    assert error is not None
    return error  # type: ignore[no-any-return]


def gang_of(count: int, cpu: float = 1, policy: str = "PACK") -> VirtualCluster:
    nodes = FixedSizeNodes(
        nodes=(FixedSizeNode(resources={"CPU": cpu}),) * count,
        scheduling_policy=SchedulingPolicy(policy),
    )
    return VirtualCluster(fixed_size_nodes=(nodes,))


def test_the_machine_offers_its_cpus_and_nothing_of_rays_own(cluster: Cluster) -> None:
    (machine,) = cluster.machines()
    assert machine.total.only({"CPU"}) == Resources.of({"CPU": 2})
    names = {name for name, _ in machine.total.units}
    assert names <= {"CPU", "memory"}
    assert most(ONE_CPU, SchedulingPolicy.PACK, cluster.machines()) == 2


def test_a_group_is_placed_on_machines(cluster: Cluster) -> None:
    group = cluster.create_group("placed", [ONE_CPU, ONE_CPU], SchedulingPolicy.STRICT_PACK)
    (machine,) = cluster.machines()
    assert group.wait(PATIENCE_S) == (machine.id, machine.id)
    assert group.state() is GroupState.READY
    group.remove()
    assert group.state() is GroupState.REMOVED
    group.remove()


def test_a_worker_that_is_made_anew_holds_nothing_of_before(start: Callable[..., Worker]) -> None:
    worker = start("contract/0/0", "before")
    process, _ = worker.call("thread").result(PATIENCE_S)
    worker.call("note").result(PATIENCE_S)
    worker.call("__init__", "after").result(PATIENCE_S)
    assert worker.call("read").result(PATIENCE_S) == ["after"]
    assert worker.call("names").result(PATIENCE_S) == ["_lines"]
    assert worker.call("thread").result(PATIENCE_S)[0] == process
    worker.kill()


def test_a_group_waits_while_the_cluster_is_busy(cluster: Cluster, group: Group) -> None:
    waiting = cluster.create_group("waiting", [ONE_CPU, ONE_CPU], SchedulingPolicy.PACK)
    try:
        assert waiting.wait(0.2) is None
        assert waiting.state() is GroupState.PENDING
        group.remove()
        assert waiting.wait(PATIENCE_S) is not None
    finally:
        waiting.remove()


def test_a_group_that_can_never_be_placed_says_so(cluster: Cluster) -> None:
    big = Bundle(resources=Resources.of({"CPU": 64}))
    group = cluster.create_group("big", [big], SchedulingPolicy.PACK)
    assert group.wait(0.2) is None
    deadline = time.monotonic() + PATIENCE_S
    while group.state() is not GroupState.INFEASIBLE:
        assert time.monotonic() < deadline
    group.remove()


def test_a_name_is_taken_until_its_group_is_removed(cluster: Cluster, group: Group) -> None:
    with pytest.raises(GangExists):
        cluster.create_group("contract", [ONE_CPU], SchedulingPolicy.PACK)
    group.remove()
    again = cluster.create_group("contract", [ONE_CPU], SchedulingPolicy.PACK)
    assert again.wait(PATIENCE_S) is not None
    again.remove()


def test_workers_are_as_nice_as_the_cluster_says(
    cluster: Cluster, start: Callable[..., Worker]
) -> None:
    assert start().call("niceness").result(PATIENCE_S) == cluster.worker_niceness() == os.nice(0)


def test_calls_run_in_the_order_they_were_made(start: Callable[..., Worker]) -> None:
    worker = start()
    for line in range(200):
        worker.call("write", line)
    assert worker.call("read").result(PATIENCE_S) == list(range(200))


def test_calls_run_one_at_a_time_in_one_process(start: Callable[..., Worker]) -> None:
    worker = start()
    assert len({worker.call("thread").result(PATIENCE_S) for _ in range(3)}) == 1


def test_a_stored_value_arrives_in_place_of_its_handle(
    cluster: Cluster, start: Callable[..., Worker]
) -> None:
    worker = start("contract/0/0", cluster.put("first"))
    worker.call("write", cluster.put({"second": 2}))
    assert worker.call("read").result(PATIENCE_S) == ["first", {"second": 2}]


def test_what_the_code_raises_is_told_and_the_worker_goes_on(start: Callable[..., Worker]) -> None:
    worker = start()
    failed = end_of(worker.call("trip"))
    assert isinstance(failed, WorkerFailed)
    assert (failed.worker, failed.method, failed.kind) == ("contract/0/0", "trip", "Tripped")
    assert failed.message == "('over', 3)"
    assert "in trip" in failed.remote_traceback
    assert type(failed.__cause__).__name__ == "Tripped"
    assert worker.call("read").result(PATIENCE_S) == []


def test_a_method_that_does_not_exist_fails_the_call(start: Callable[..., Worker]) -> None:
    failed = end_of(start().call("nothing"))
    assert isinstance(failed, WorkerFailed)
    assert (failed.method, failed.kind) == ("nothing", "AttributeError")


def test_a_worker_that_cannot_be_made_fails_every_call(start: Callable[..., Worker]) -> None:
    worker = start("contract/0/0", "refuse")
    for _ in range(2):
        failed = end_of(worker.call("read"))
        assert isinstance(failed, WorkerFailed)
        assert (failed.method, failed.kind) == ("__init__", "ValueError")
        assert failed.message == "bad first line: refuse"
        assert "in __init__" in failed.remote_traceback


def test_a_kill_ends_the_calls_in_flight_and_those_to_come(start: Callable[..., Worker]) -> None:
    worker = start()
    worker.call("read").result(PATIENCE_S)
    hanging, behind = worker.call("hang"), worker.call("read")
    worker.kill()
    worker.kill()
    assert isinstance(end_of(hanging), WorkerLost)
    assert isinstance(end_of(behind), WorkerLost)
    assert isinstance(end_of(worker.call("read")), WorkerLost)


def test_a_killed_worker_is_replaced_on_its_vnode(start: Callable[..., Worker]) -> None:
    start("contract/0/0", "old").kill()
    assert start("contract/0/1", "new").call("read").result(PATIENCE_S) == ["new"]


def test_removing_a_group_ends_its_workers(start: Callable[..., Worker], group: Group) -> None:
    worker = start()
    hanging = worker.call("hang")
    group.remove()
    assert isinstance(end_of(hanging), WorkerLost)
    assert isinstance(end_of(worker.call("read")), WorkerLost)


def test_a_call_in_flight_cannot_be_taken_back(start: Callable[..., Worker]) -> None:
    call = start().call("read")
    assert not call.cancel()
    assert call.result(PATIENCE_S) == []


def test_a_gang_that_can_never_be_is_refused_and_not_waited_for(cluster: Cluster) -> None:
    with pytest.raises(GangInfeasible) as refused:
        VirtualClusterManager(cluster).reserve(gang_of(3), name="run", timeout_s=3600)
    assert refused.value.most == 2


def test_a_gang_that_waits_in_vain_leaves_nothing(cluster: Cluster, group: Group) -> None:
    with VirtualClusterManager(cluster) as manager:
        with pytest.raises(GangTimeout, match="others hold the resources"):
            manager.reserve(gang_of(2), name="run", timeout_s=0.3)
        # What the failed attempt asked for is free again, and so is its name.
        with manager.reserve(gang_of(1), name="run", timeout_s=PATIENCE_S) as gang:
            assert len(gang.vnodes) == 1


def test_strict_spread_on_one_machine_is_refused(cluster: Cluster) -> None:
    with pytest.raises(GangInfeasible, match="STRICT_SPREAD needs 2 machines"):
        VirtualClusterManager(cluster).reserve(gang_of(2, policy="STRICT_SPREAD"), name="run")
