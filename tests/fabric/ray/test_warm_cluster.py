"""A warm cluster hands a released gang's places and idle workers to the next gang that is alike."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from fedpilot.fabric import (
    Bundle,
    ClusterId,
    FabricError,
    Group,
    MachineId,
    Resources,
    SchedulingPolicy,
    VNode,
    VNodeId,
    WarmCluster,
    Worker,
    WorkerLost,
)
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from real_ray import eventually

SOON_S = 60.0
groups: list[Group] = []
ONE, TWO = (Bundle(resources=Resources.of({"CPU": cpus})) for cpus in (1, 2))


class Guest:
    """Says in which thread (of a fake: in which process) it lives, and of what it was made."""

    def __init__(self, kind: str, number: int) -> None:
        if number < 0:
            raise ValueError("no guest has a negative number")
        self.number = number

    @staticmethod
    def follows(before: Sequence[Any], after: Sequence[Any]) -> bool:
        return bool(before[0] == after[0])

    def where(self) -> tuple[int, int]:
        return threading.get_ident(), self.number

    def wait(self, gate: threading.Event) -> None:
        gate.wait(SOON_S)


class Loner:
    """A class that does not say that it may be made anew."""

    def where(self) -> tuple[int, int]:
        return threading.get_ident(), 0


@pytest.fixture
def below() -> FakeCluster:
    return FakeCluster([fake_machine("a", CPU=4)])


@pytest.fixture
def cluster(below: FakeCluster) -> Iterator[WarmCluster]:
    warm = WarmCluster(below)
    yield warm
    for group in groups:
        group.remove()
    groups.clear()
    warm.close()
    assert below.groups() == ()


def gang(cluster: WarmCluster, name: str, *bundles: Bundle) -> Group:
    group = cluster.create_group(name, bundles or [ONE], SchedulingPolicy.PACK)
    groups.append(group)
    assert group.wait(SOON_S) is not None
    return group


def start(group: Group, name: str, *args: Any, cls: type[Any] = Guest) -> Worker:
    vnode = VNode(
        id=VNodeId(f"{name}/0"),
        cluster=ClusterId(name),
        parent=MachineId("a"),
        machine=MachineId("a"),
        resources=ONE.resources,
    )
    return group.start_worker(vnode, 0, name, cls, args)


def where(worker: Worker) -> tuple[int, int]:
    found: tuple[int, int] = worker.call("where").result(SOON_S)
    return found


def end(group: Group, *workers: Worker) -> None:
    for worker in workers:
        worker.kill()
    group.remove()


def test_the_next_gang_gets_the_places_and_workers_that_are_made_anew(
    cluster: WarmCluster, below: FakeCluster
) -> None:
    first = gang(cluster, "first")
    worker = start(first, "first", "plain", 1)
    process, number = where(worker)
    (group,) = below.groups()
    end(first, worker)
    second = gang(cluster, "second")
    assert below.groups() == (group,)
    again = start(second, "second", "plain", 2)
    assert (where(again), number) == ((process, 2), 1)
    assert again.name == "second"
    end(second, again)


def test_calls_of_the_gang_before_fail(cluster: WarmCluster) -> None:
    first = gang(cluster, "first")
    worker = start(first, "first", "plain", 1)
    where(worker)
    end(first, worker)
    with pytest.raises(WorkerLost):
        where(worker)
    assert first.wait(0.0) is None


@pytest.mark.parametrize(
    ("cls", "args"), [(Guest, ("other", 2)), (Loner, ())], ids=["does not follow", "another class"]
)
def test_what_may_not_follow_gets_a_process_of_its_own(
    cluster: WarmCluster, cls: type[Any], args: tuple[Any, ...]
) -> None:
    first = gang(cluster, "first")
    worker = start(first, "first", "plain", 1)
    process, _ = where(worker)
    end(first, worker)
    other = start(gang(cluster, "second"), "second", *args, cls=cls)
    assert where(other)[0] != process


def test_a_worker_of_a_class_that_never_follows_ends_with_its_gang(cluster: WarmCluster) -> None:
    first = gang(cluster, "first")
    worker = start(first, "first", cls=Loner)
    process, _ = where(worker)
    end(first, worker)
    assert where(start(gang(cluster, "second"), "second", cls=Loner))[0] != process


def test_a_worker_that_is_killed_amid_a_call_ends(cluster: WarmCluster) -> None:
    first, gate = gang(cluster, "first"), threading.Event()
    worker = start(first, "first", "plain", 1)
    process, _ = where(worker)
    waiting = worker.call("wait", gate)
    end(first, worker)
    gate.set()
    with pytest.raises(WorkerLost):
        waiting.result(SOON_S)
    assert where(start(gang(cluster, "second"), "second", "plain", 2))[0] != process


def test_a_worker_that_was_lost_is_not_kept(cluster: WarmCluster, below: FakeCluster) -> None:
    first = gang(cluster, "first")
    worker = start(first, "first", "plain", 1)
    process, _ = where(worker)
    below.kill_worker("first")
    with pytest.raises(WorkerLost):
        where(worker)
    end(first, worker)
    assert where(start(gang(cluster, "second"), "second", "plain", 2))[0] != process


def test_a_worker_that_cannot_be_made_anew_is_lost_and_then_starts_in_full(
    cluster: WarmCluster,
) -> None:
    first = gang(cluster, "first")
    worker = start(first, "first", "plain", 1)
    where(worker)
    end(first, worker)
    second = gang(cluster, "second")
    wrong = start(second, "second", "plain", -1)
    with pytest.raises(FabricError):
        where(wrong)
    eventually(
        lambda: isinstance(wrong.call("where").exception(SOON_S), WorkerLost), SOON_S, "it ends"
    )
    wrong.kill()
    assert where(start(second, "third", "plain", 3))[1] == 3


def test_other_bundles_replace_what_is_kept(cluster: WarmCluster, below: FakeCluster) -> None:
    first = gang(cluster, "first")
    worker = start(first, "first", "plain", 1)
    where(worker)
    (group,) = below.groups()
    end(first, worker)
    gang(cluster, "second", TWO, TWO)
    assert group not in below.groups()
