"""Gangs are reserved as a whole or not at all, under one deadline, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from elastic_gangs import SharedCluster
from fedpilot.fabric import (
    Bundle,
    FabricError,
    FixedSizeNode,
    FixedSizeNodes,
    GangExists,
    GangInfeasible,
    GangTimeout,
    Group,
    Machine,
    MachineId,
    NeverFits,
    SchedulingPolicy,
    SpecError,
    VirtualCluster,
    VirtualClusterManager,
    VNodeId,
    WorkerLost,
)
from fedpilot.fabric.ray.protocol import GroupState
from fedpilot.fabric.testing.fake_cluster import FakeCluster, FakeGroup, ManualClock, fake_machine


def wanted(*counts: int, cpu: float = 1, policy: str = "PACK") -> VirtualCluster:
    """One group of equal nodes for each count."""
    return VirtualCluster(
        fixed_size_nodes=tuple(
            FixedSizeNodes(
                nodes=(FixedSizeNode(resources={"CPU": cpu}),) * count,
                scheduling_policy=SchedulingPolicy(policy),
            )
            for count in counts
        )
    )


class Held:
    """A worker that does nothing."""

    def ping(self) -> str:
        return "pong"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cluster(clock: ManualClock) -> FakeCluster:
    machines = [
        fake_machine("a", labels={"zone": "z1"}, CPU=2),
        fake_machine("b", labels={"zone": "z2"}, CPU=2),
    ]
    return FakeCluster(machines, clock)


@pytest.fixture
def manager(cluster: FakeCluster, clock: ManualClock) -> VirtualClusterManager:
    return VirtualClusterManager(cluster, clock)


def test_the_vnodes_say_where_they_are_and_whose(manager: VirtualClusterManager) -> None:
    spec = VirtualCluster(
        fixed_size_nodes=(
            FixedSizeNodes(
                nodes=(
                    FixedSizeNode(
                        resources={"CPU": 2},
                        parent_node_selector={"zone": "!z1"},
                        labels={"role": "trainer"},
                    ),
                )
            ),
            FixedSizeNodes(nodes=(FixedSizeNode(resources={"CPU": 1}),)),
        )
    )
    gang = manager.reserve(spec, name="run")
    assert [(vnode.id, vnode.cluster, vnode.parent, vnode.machine) for vnode in gang.vnodes] == [
        ("run/0", "run", "b", "b"),
        ("run/1", "run", "a", "a"),
    ]
    assert gang.vnodes[0].labels == {
        "zone": "z2",
        "role": "trainer",
        "ray.io/vnode_id": "run/0",
        "ray.io/vcluster_id": "run",
    }
    assert manager.gangs() == (gang,)


def test_an_infeasible_gang_is_refused_at_once_with_the_most_there_is(
    manager: VirtualClusterManager, cluster: FakeCluster, clock: ManualClock
) -> None:
    with pytest.raises(GangInfeasible) as refused:
        manager.reserve(wanted(3, policy="STRICT_SPREAD"), name="run")
    assert refused.value.most == 2
    assert clock() == 0
    assert cluster.groups() == ()


def test_groups_that_fit_alone_but_not_together_are_refused_at_once(
    manager: VirtualClusterManager, cluster: FakeCluster
) -> None:
    with pytest.raises(GangInfeasible):
        manager.reserve(wanted(2, 1, cpu=2), name="run")
    assert cluster.groups() == ()


def test_a_busy_cluster_is_waited_for_once_for_all_groups(
    manager: VirtualClusterManager, cluster: FakeCluster, clock: ManualClock
) -> None:
    manager.reserve(wanted(1, cpu=2), name="first")
    with pytest.raises(GangTimeout, match="others hold the resources") as late:
        manager.reserve(wanted(1, 1, cpu=2), name="second", timeout_s=7)
    assert late.value.waited_s == clock() == 7
    assert [group.name for group in cluster.groups()] == ["first/0"]


def test_what_was_given_back_can_be_had_again(manager: VirtualClusterManager) -> None:
    for _ in range(3):
        with manager.reserve(wanted(4), name="run") as gang:
            assert len(gang.vnodes) == 4
    assert manager.gangs() == ()


def test_a_name_can_be_held_once(manager: VirtualClusterManager) -> None:
    manager.reserve(wanted(1), name="run")
    with pytest.raises(GangExists):
        manager.reserve(wanted(1), name="run")


def test_a_name_that_another_manager_holds_is_refused(
    manager: VirtualClusterManager, cluster: FakeCluster
) -> None:
    VirtualClusterManager(cluster).reserve(wanted(1), name="run")
    with pytest.raises(GangExists) as taken:
        manager.reserve(wanted(1), name="run")
    assert taken.value.name == "run"
    assert manager.gangs() == ()


def test_a_gang_needs_a_name(manager: VirtualClusterManager) -> None:
    with pytest.raises(SpecError, match="needs a name"):
        manager.reserve(wanted(1), name="")


class _BrokenCluster(FakeCluster):
    """Fails in the middle of a reservation, in the way it was told."""

    def __init__(self, machines: Iterable[Machine], at: str, error: BaseException) -> None:
        super().__init__(tuple(machines), ManualClock())
        self._at, self._error = at, error

    def create_group(
        self, name: str, bundles: Sequence[Bundle], policy: SchedulingPolicy
    ) -> FakeGroup:
        if self._at == f"create {name}":
            raise self._error
        return super().create_group(name, bundles, policy)

    def wait(self, group: FakeGroup, timeout_s: float) -> tuple[MachineId, ...] | None:
        if self._at == f"wait {group.name}":
            raise self._error
        return super().wait(group, timeout_s)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), FabricError("lost")], ids=repr)
@pytest.mark.parametrize("at", ["create run/0", "create run/1", "wait run/0", "wait run/1"])
def test_whatever_stops_a_reservation_nothing_is_left(at: str, error: BaseException) -> None:
    cluster = _BrokenCluster([fake_machine("a", CPU=4)], at, error)
    manager = VirtualClusterManager(cluster)
    with pytest.raises(type(error)):
        manager.reserve(wanted(2, 2), name="run")
    assert cluster.groups() == ()
    assert manager.gangs() == ()


def test_release_ends_the_workers_and_may_be_repeated(
    manager: VirtualClusterManager, cluster: FakeCluster
) -> None:
    gang = manager.reserve(wanted(2), name="run")
    workers = [gang.start_worker(vnode, Held) for vnode in gang.vnodes]
    assert [worker.call("ping").result(60) for worker in workers] == ["pong", "pong"]
    manager.release(gang)
    gang.release()
    assert cluster.groups() == ()
    for worker in workers:
        assert isinstance(worker.call("ping").exception(60), WorkerLost)
    with pytest.raises(FabricError, match="released"):
        gang.start_worker(gang.vnodes[0], Held)


def test_close_releases_every_gang(manager: VirtualClusterManager, cluster: FakeCluster) -> None:
    with manager:
        manager.reserve(wanted(1), name="first")
        manager.reserve(wanted(1, 1), name="second")
        assert len(cluster.groups()) == 3
    manager.close()
    assert cluster.groups() == ()
    assert manager.gangs() == ()


def test_a_group_that_cannot_be_removed_does_not_keep_the_others(
    manager: VirtualClusterManager, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = manager.reserve(wanted(1, 1), name="run")
    remove = cluster.remove

    def stubborn(group: FakeGroup) -> None:
        if group.name == "run/1":
            raise FabricError("it does not go")
        remove(group)

    monkeypatch.setattr(cluster, "remove", stubborn)
    with pytest.raises(FabricError, match="does not go"):
        gang.release()
    assert [group.name for group in cluster.groups()] == ["run/1"]
    assert manager.gangs() == ()


def test_a_worker_that_is_replaced_has_another_name(manager: VirtualClusterManager) -> None:
    gang = manager.reserve(wanted(1), name="run")
    first = gang.start_worker(gang.vnodes[0], Held)
    first.kill()
    second = gang.start_worker(gang.vnodes[0], Held)
    assert first.name != second.name
    assert first.vnode == second.vnode == gang.vnodes[0]
    assert second.call("ping").result(60) == "pong"


def test_most_counts_what_the_idle_cluster_could_hold(manager: VirtualClusterManager) -> None:
    manager.reserve(wanted(2), name="run")
    assert manager.most(FixedSizeNode(resources={"CPU": 1}), SchedulingPolicy.SPREAD) == 4


def test_a_group_says_that_it_will_never_be_placed() -> None:
    cluster = FakeCluster([fake_machine("a", CPU=1)])
    group: Group = cluster.create_group(
        "big", wanted(1, cpu=2).groups()[0].bundles, SchedulingPolicy.PACK
    )
    assert group.state() is GroupState.INFEASIBLE
    assert group.wait(0) is None
    group.remove()
    assert group.state() is GroupState.REMOVED


# -- gangs that grow ------------------------------------------------------------------------------


def elastic(least: int, most: int) -> VirtualCluster:
    (group,) = wanted(least).node_groups
    return VirtualCluster(fixed_size_nodes=(replace(group, max_nodes=most),))


@pytest.mark.parametrize(("least", "most", "held"), [(2, 3, 3), (2, 9, 4), (4, 4, 4)])
def test_a_private_ray_gives_an_elastic_gang_all_that_fits_for_good(
    least: int, most: int, held: int, manager: VirtualClusterManager
) -> None:
    gang = manager.reserve(elastic(least, most), name="run")
    assert len(gang.vnodes) == held
    assert not gang.elastic
    assert not any(map(gang.may_leave, gang.vnodes))


def test_an_elastic_gang_whose_minimum_does_not_fit_is_refused(
    manager: VirtualClusterManager,
) -> None:
    with pytest.raises(GangInfeasible):
        manager.reserve(elastic(5, 8), name="run")


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> SharedCluster:
    return SharedCluster(monkeypatch)


def test_a_gang_that_moved_between_two_looks_was_away(shared: SharedCluster) -> None:
    gang = VirtualClusterManager(shared).reserve(wanted(2), name="run")
    assert gang.standing().held
    shared.manager.since = 5.0
    away = gang.standing()
    assert (away.held, away.reason, away.slots) == (False, "it goes on at other places", ())
    assert gang.standing().held


def test_on_a_shared_ray_the_manager_judges_what_can_be(shared: SharedCluster) -> None:
    with VirtualClusterManager(shared) as manager:
        gang = manager.reserve(wanted(1, cpu=65), name="large")
        assert len(gang.vnodes) == 1, "machines may come, as the manager knows"

        shared.manager.refuses = NeverFits("run", "the pool gpus has 2 CPU", 2)
        with pytest.raises(GangInfeasible) as refused:
            manager.reserve(wanted(3, cpu=1), name="run")
    assert (refused.value.most, refused.value.reason) == (2, "the pool gpus has 2 CPU")


def test_on_a_shared_ray_nodes_above_the_minimum_come_and_leave(shared: SharedCluster) -> None:
    gang = VirtualClusterManager(shared).reserve(elastic(2, 4), name="run")
    assert gang.elastic
    assert shared.manager.waits_for_ends, "the manager sees no work of a gang"
    assert [vnode.id for vnode in gang.vnodes] == ["run/0", "run/1"]
    shared.manager.grow()
    came, left = gang.follow(gang.standing())
    assert ([vnode.id for vnode in came], left) == (["run/2"], ())
    assert list(map(gang.may_leave, gang.vnodes)) == [False, False, True]
    shared.manager.notice("run/2", 1e9)
    notice = gang.standing().notices[VNodeId("run/2")]
    assert notice.reason == "for other: over its quota"
    assert notice.leaves_in_s is not None
    gang.leave(VNodeId("run/2"))
    assert gang.follow(gang.standing()) == ((), ("run/2",))


def test_a_node_that_leaves_once_it_is_idle_has_no_time(shared: SharedCluster) -> None:
    gang = VirtualClusterManager(shared).reserve(elastic(1, 2), name="run")
    shared.manager.grow()
    shared.manager.notice("run/1")
    assert gang.standing().notices[VNodeId("run/1")].leaves_in_s is None


def test_a_node_that_left_and_came_again_between_two_looks_is_another(
    shared: SharedCluster,
) -> None:
    gang = VirtualClusterManager(shared).reserve(elastic(1, 2), name="run")
    shared.manager.grow()
    gang.follow(gang.standing())
    shared.manager.take("run/1")
    shared.manager.grow()
    came, left = gang.follow(gang.standing())
    assert ([vnode.id for vnode in came], left) == (["run/1"], ("run/1",))


def test_a_node_above_the_minimum_counts_once_ray_has_made_it(
    shared: SharedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = VirtualClusterManager(shared).reserve(elastic(1, 2), name="run")
    monkeypatch.setattr(FakeGroup, "state", lambda _: GroupState.PENDING)
    shared.manager.grow()
    assert gang.follow(gang.standing()) == ((), ())
    monkeypatch.setattr(FakeGroup, "state", lambda _: GroupState.READY)
    came, _ = gang.follow(gang.standing())
    assert [vnode.id for vnode in came] == ["run/1"]
