"""The proposal's two walk-throughs on a real Ray, and what has to hold inside a virtual cluster.

Where work ran is read off Ray in the worker, never asked of what is tested here. One file, for one
Ray: starting it takes longer than most of these tests.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedpilot import fabric
from fedpilot.fabric import In, SchedulingPolicy, VirtualCluster, VirtualClusters
from fedpilot.fabric.errors import FabricError, NoSuchCluster
from rays import tasks
from rays.drawings import VCLUSTER, VNODE, becomes, drawn, made_for, rays_own, state_of
from rays.drivers import TWO_TASKS
from rays.machines import PATIENCE_S
from rays.sessions import fixed, flexible, got, inside, job, machines, outside
from rays.tasks import (
    Gates,
    Parent,
    actor,
    children,
    fibonacci,
    here,
    leave_marks,
    megabytes,
    seen,
    task,
    wait_for,
)
from real_ray import ENVIRONMENT, REPOSITORY, eventually, in_session

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.own_process,
]

API: Any = ray
"""Ray where its own annotations say less than it does."""


# -- a Ray, and jobs on it --------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> Iterator[None]:
    """What is sent to workers goes there whole: they cannot import these modules."""
    sent = (tasks, sys.modules[__name__])
    for module in sent:
        API.cloudpickle.register_pickle_by_value(module)
    yield
    for module in sent:
        API.cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="module")
def two() -> Iterator[Cluster]:
    """Two machines with four CPUs each."""
    with machines(2, 4) as found:
        yield found


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Gates]:
    """Files that tasks wait for; all are there in the end."""
    found = Gates(tmp_path)
    yield found
    found.open_all()


def test_scheduling_goes_as_the_proposal_draws_it(two: Cluster, gates: Gates) -> None:
    with outside(two) as clusters:
        becomes(clusters, [("physical", 4, 4)], [("physical", 4, 4)])
    spec = fixed(1, 1, policy=SchedulingPolicy.STRICT_SPREAD)
    with job(two, spec) as cluster:
        clusters, id = VirtualClusters(), cluster.id
        idle = [("physical", 4, 3), (id, 1, 1)]
        busy = [("physical", 4, 3), (id, 1, 0)]
        becomes(clusters, idle, idle)
        eventually(lambda: rays_own(two) == {3: 2}, PATIENCE_S, "Ray itself holds the CPUs")
        work = [task(wait_for).remote(gates.of(1))]
        becomes(clusters, busy, idle)
        work.append(task(wait_for).remote(gates.of(2)))
        becomes(clusters, busy, busy)
        third = task(wait_for).remote(gates.of(0))
        gates.open(0)
        assert ray.wait([third], timeout=1)[0] == [], "the third had no CPU to run on"
        becomes(clusters, busy, busy)
        gates.open(1)
        first = got(work[0])
        assert got(third) == first, "the third got the place of the first"
        becomes(clusters, busy, idle)
        gates.open(2)
        assert got(work[1]).machine != first.machine
        becomes(clusters, idle, idle)
    with outside(two) as clusters:
        becomes(clusters, [("physical", 4, 4)], [("physical", 4, 4)])
        eventually(lambda: rays_own(two) == {4: 2}, PATIENCE_S, "Ray has the CPUs back")


def test_autoscaling_goes_as_the_proposal_draws_it(gates: Gates) -> None:
    with machines(1, 2) as one:
        with job(one, flexible(1)) as cluster:
            clusters, id = VirtualClusters(), cluster.id
            becomes(clusters, [("physical", 2, 1), (id, 1, 1)])
            work = [task(wait_for).remote(gates.of(0))]
            becomes(clusters, [("physical", 2, 1), (id, 1, 0)])
            work.append(task(wait_for).remote(gates.of(0)))
            becomes(clusters, [("physical", 2, 0), (id, 2, 0)])
            work.append(task(wait_for).remote(gates.of(0)))
            eventually(
                lambda: list(clusters.snapshot()["demand"]) == [{"CPU": 1.0}],
                PATIENCE_S,
                "the third task is demand for another machine",
            )
            becomes(clusters, [("physical", 2, 0), (id, 2, 0)])
            one.add_node(num_cpus=2, object_store_memory=10**8)
            becomes(
                clusters,
                [("physical", 2, 0), (id, 2, 0)],
                [("physical", 2, 1), (id, 1, 0)],
            )
            assert list(clusters.snapshot()["demand"]) == []
            kinds = [node["kind"] for node in cluster.state()["nodes"]]
            assert kinds == ["flexible", "flexible"]
            gates.open(0)
            places = [got(each) for each in work]
            assert Counter(Counter(each.machine for each in places).values()) == {1: 1, 2: 1}
            assert {made_for(each.group) for each in places} == {id}
            becomes(clusters, [("physical", 2, 2)], [("physical", 2, 1), (id, 1, 1)])
        with outside(one) as clusters:
            becomes(clusters, [("physical", 2, 2)], [("physical", 2, 2)])


# -- jobs of their own ------------------------------------------------------------------------


def test_everything_that_a_job_submits_stays_inside(two: Cluster) -> None:
    with job(two, flexible(3, 3)) as cluster:
        parent = actor(Parent).remote()
        outer, inner = got(task(children).remote(2))
        found = {
            "task": [got(task(here).remote())],
            "nested task": [outer, *inner],
            "default": [got(task(here, scheduling_strategy="DEFAULT").remote())],
            "spread": [got(task(here, scheduling_strategy="SPREAD").remote())],
            "actor": [got(parent.where.remote())],
            "children of an actor": got(parent.children.remote()),
        }
        ran = {what: {made_for(each.group) for each in places} for what, places in found.items()}
        assert ran == {what: {cluster.id} for what in found}


def test_nested_clusters_end_with_their_parent(two: Cluster) -> None:
    with contextlib.ExitStack() as stack, job(two, flexible(2, 2)):
        inner = stack.enter_context(fixed(1))
        assert inner.state()["state"] == "active"
        fabric.shutdown()
    with outside(two) as clusters:
        becomes(clusters, [("physical", 4, 4)], [("physical", 4, 4)])
        eventually(lambda: rays_own(two) == {4: 2}, PATIENCE_S, "Ray has the CPUs back")


def test_state_is_summed_up_for_the_virtual_cluster_alone(two: Cluster) -> None:
    pytest.importorskip("aiohttp", reason="Ray's code that asks for state needs ray[default]")
    from fedpilot.fabric.inside import state

    with job(two, flexible(2, 2)) as cluster:
        made = actor(Parent).remote()
        got(made.where.remote())
        parent = [task(megabytes).remote(2) for _ in range(3)]
        got(parent)
        with fixed(1) as child:
            kept = task(megabytes).remote(1)
            got(kept)
            eventually(
                lambda: state.summarize_tasks() == {"megabytes": {"FINISHED": 1}},
                PATIENCE_S,
                "inside, there is the task of the child alone",
            )
            assert state.summarize_actors() == {}
            assert state.summarize_objects()["objects"] == 1
            assert 10**6 <= child.used_object_store_memory() < 2 * 10**6
            done = {"Parent.__init__": {"FINISHED": 1}, "megabytes": {"FINISHED": 4}}
            eventually(
                lambda: _without_methods(state.summarize_tasks(cluster.id)) == done,
                PATIENCE_S,
                "the parent tells of its own and of its child's",
            )
            assert state.summarize_actors(cluster.id) == {"Parent": {"ALIVE": 1}}
            assert cluster.used_object_store_memory() >= 7 * 10**6
    with outside(two), pytest.raises(FabricError):
        state.summarize_tasks()


def _without_methods(summary: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    return {name: counts for name, counts in summary.items() if name != "Parent.where"}


def test_a_driver_that_is_killed_leaves_nothing_behind(two: Cluster) -> None:
    command = [sys.executable, "-c", TWO_TASKS, two.address]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(REPOSITORY / "src")}
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with outside(two) as clusters, in_session(command, env=environment, **pipes) as driver:
        assert driver.stdout is not None
        while (line := driver.stdout.readline()) and line != "submitted\n":
            pass
        assert line, "the driver ended early"
        eventually(lambda: _held(clusters) == 2, PATIENCE_S, "one task runs on a loan")
        os.kill(driver.pid, signal.SIGKILL)
        eventually(lambda: _held(clusters) == 0, 60, "its virtual cluster ended")
        becomes(clusters, [("physical", 4, 4)], [("physical", 4, 4)])
        eventually(lambda: rays_own(two) == {4: 2}, PATIENCE_S, "Ray has the CPUs back")


def _held(clusters: VirtualClusters) -> float:
    return sum(row.total for rows in drawn(clusters) for row in rows if row.cluster != "physical")


# -- growing ----------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_flexible_node_that_grew_runs_a_task_of_its_whole_size(
    two: Cluster, gates: Gates
) -> None:
    with inside(two, flexible(1, 4)) as cluster:
        work = [task(wait_for).remote(gates.of(0)) for _ in range(4)]
        eventually(lambda: state_of(cluster)["placed"] == 4, PATIENCE_S, "four run")
        assert [node.total_resources() for node in cluster.nodes()] == [{"CPU": 4}]
        gates.open(0)
        for each in work:
            got(each)
        assert made_for(got(task(here, num_cpus=4).remote()).group) == cluster.id


@pytest.mark.soak
def test_a_cluster_has_one_flexible_node_on_a_machine_at_most(two: Cluster, gates: Gates) -> None:
    with inside(two, flexible(1)) as cluster:
        work = [task(wait_for).remote(gates.of(0)) for _ in range(8)]
        eventually(lambda: state_of(cluster)["placed"] == 8, PATIENCE_S, "all eight run")
        assert sorted(node.total_resources()["CPU"] for node in cluster.nodes()) == [4, 4]
        assert len({node.physical_node_id() for node in cluster.nodes()}) == 2
        gates.open(0)
        assert {made_for(got(each).group) for each in work} == {cluster.id}
        eventually(lambda: cluster.total_resources() == {"CPU": 1}, PATIENCE_S, "loans go back")


@pytest.mark.soak
def test_a_child_grows_through_its_parent_and_gives_back_through_it(
    two: Cluster, gates: Gates
) -> None:
    with inside(two, flexible(1, 3)) as parent, flexible(1) as child:
        assert (parent.total_resources(), child.total_resources()) == ({"CPU": 1}, {"CPU": 1})
        work = [task(wait_for).remote(gates.of(0)) for _ in range(4)]
        eventually(lambda: state_of(child)["placed"] == 3, PATIENCE_S, "three of four run")
        assert parent.total_resources() == child.total_resources() == {"CPU": 3}
        assert state_of(child)["placed"] == 3, "the limit of the parent is that of the child"
        gates.open(0)
        assert {made_for(got(each).group) for each in work} == {child.id}
        eventually(
            lambda: child.total_resources() == parent.total_resources() == {"CPU": 1},
            PATIENCE_S,
            "both gave back what they had borrowed",
        )
        assert len(drawn(VirtualClusters())) == 2


# -- nesting ----------------------------------------------------------------------------------


def test_a_nested_cluster_is_carved_out_of_its_parent_and_ends_with_its_block(
    two: Cluster,
) -> None:
    with inside(two, flexible(3, 3)) as parent:
        before = parent.available_resources()
        with fixed(1, 1) as child:
            assert fabric.current_cluster() == child
            assert child.parent_cluster() == parent
            assert parent.child_clusters() == [child]
            assert parent.total_resources() == {"CPU": 3}
            assert parent.available_resources() == {"CPU": 1}
            assert made_for(got(task(here).remote()).group) == child.id
            above = {node.parent_node() for node in child.nodes()}
            assert above == set(parent.nodes())
            machine = parent.nodes()[0].physical_node_id()
            assert {node.physical_node_id() for node in child.nodes()} == {machine}
        assert fabric.current_cluster() == parent
        assert parent.available_resources() == before
        with pytest.raises(NoSuchCluster):
            child.state()
        assert made_for(got(task(here).remote()).group) == parent.id


@pytest.mark.soak
def test_a_nested_cluster_that_its_parent_has_no_room_for_is_refused(two: Cluster) -> None:
    with pytest.raises(FabricError), job(two, flexible(9, 9)) as parent:
        raise AssertionError(f"{parent.id} has nine of eight CPUs")
    with inside(two, flexible(2, 2)), pytest.raises(FabricError), fixed(3):
        raise AssertionError("three CPUs were found in two")


# -- work -------------------------------------------------------------------------------------


def test_tasks_that_wait_for_their_children_leave_them_their_cpus(two: Cluster) -> None:
    with inside(two, flexible(2, 2)) as cluster:
        assert got(task(fibonacci).remote(3)) == 2
        assert cluster.total_resources() == {"CPU": 2}


def test_actors_run_on_the_nodes_whose_labels_they_name(two: Cluster) -> None:
    with inside(two, fixed(1, 1, policy=SchedulingPolicy.STRICT_SPREAD, labelled=True)) as cluster:
        made = [actor(Parent).options(node_labels={"index": In(i)}).remote() for i in "01"]
        assert [got(each.label.remote()) for each in made] == ["0", "1"]
        machines = {
            node.node_labels()["index"]: node.physical_node_id() for node in cluster.nodes()
        }
        found = [got(each.where.remote()).machine for each in made]
        assert found == [machines["0"], machines["1"]]
        assert found[0] != found[1]


def test_a_placement_group_becomes_a_cluster_inside_and_takes_nothing_from_the_rest_of_ray(
    two: Cluster,
) -> None:
    with inside(two, flexible(3, 3)) as cluster:
        eventually(lambda: sum(rays_own(two).elements()) == 5, PATIENCE_S, "Ray has five left")
        group = placement_group([{"CPU": 1}, {"CPU": 1}])
        assert group.wait(PATIENCE_S)
        (child,) = cluster.child_clusters()
        assert child.total_resources() == {"CPU": 2}
        assert cluster.available_resources() == {"CPU": 1}
        eventually(lambda: sum(rays_own(two).elements()) == 5, PATIENCE_S, "still five left")
        strategy = PlacementGroupSchedulingStrategy(group)
        ran = got(task(here, scheduling_strategy=strategy).remote())
        assert ran.group == group.id.hex()
        assert made_for(ran.group) == child.id
        remove_placement_group(group)
        assert cluster.child_clusters() == []
        assert cluster.available_resources() == {"CPU": 3}


def test_a_task_that_could_never_run_inside_is_refused_when_it_is_submitted(two: Cluster) -> None:
    with inside(two, flexible(2, 2)):
        with pytest.raises(ValueError, match="cannot run in virtual cluster"):
            task(here, num_cpus=3).remote()
        assert got(task(here, num_cpus=2).remote())


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(fixed(1, 1, 1), id="on fixed-size nodes"),
        pytest.param(flexible(1, 3), id="on flexible nodes"),
    ],
)
def test_never_more_runs_at_a_time_than_the_cluster_has_room_for(
    two: Cluster, spec: VirtualCluster, tmp_path: Path
) -> None:
    with inside(two, spec) as cluster:
        most = [got(each) for each in [task(leave_marks).remote(str(tmp_path)) for _ in range(30)]]
        assert max(most) == 3
        assert cluster.total_resources()["CPU"] <= 3


def test_an_actor_that_is_killed_leaves_its_place_to_one_that_waits(two: Cluster) -> None:
    with inside(two, flexible(1, 1)) as cluster:
        first, second = actor(Parent).remote(), actor(Parent).remote()
        got(first.where.remote())
        waiting = second.where.remote()
        assert ray.wait([waiting], timeout=0.5)[0] == []
        ray.kill(first)
        assert made_for(got(waiting).group) == cluster.id


@pytest.mark.soak
def test_an_actor_that_is_only_found_by_its_name_holds_nothing_more(two: Cluster) -> None:
    with inside(two, flexible(2, 2)) as cluster:
        named = actor(Parent).options(name="one", get_if_exists=True)
        found = [named.remote() for _ in range(5)]
        assert len({got(each.where.remote()) for each in found}) == 1
        eventually(
            lambda: cluster.available_resources() == {"CPU": 1}, PATIENCE_S, "it holds one CPU"
        )


@pytest.mark.soak
def test_an_actor_without_demands_leaves_room_for_a_task_of_the_whole_size(two: Cluster) -> None:
    with inside(two, flexible(1, 1)):
        idle = API.remote(Parent).remote()
        got(idle.where.remote())
        assert got(task(here).remote())


# -- what a job sees --------------------------------------------------------------------------


def test_a_cluster_tells_all_that_the_proposal_lists(two: Cluster, gates: Gates) -> None:
    spec = VirtualCluster(
        flex_resource_min={"CPU": 1},
        flex_resource_max={"CPU": 2},
        fixed_size_nodes=fixed(1, labelled=True).fixed_size_nodes,
    )
    with inside(two, spec) as cluster:
        work = task(wait_for).remote(gates.of(0))
        eventually(lambda: state_of(cluster)["placed"] == 1, PATIENCE_S, "it runs")
        assert cluster.spec() == spec
        assert cluster.cluster_id() == cluster.id == fabric.current_cluster().cluster_id()
        assert cluster.total_resources() == {"CPU": 2}
        assert cluster.max_resources() == {"CPU": 3}
        assert cluster.available_resources() == {"CPU": 1}
        assert len(cluster.nodes()) == 2
        assert cluster.state()["state"] == "active"
        assert cluster.child_clusters() == []
        assert cluster.parent_cluster() is None
        gates.open(0)
        got(work)


def test_a_node_tells_all_that_the_proposal_lists(two: Cluster, gates: Gates) -> None:
    with inside(two, fixed(2, labelled=True)) as cluster, fixed(1) as child:
        (node,), (below,) = cluster.nodes(), child.nodes()
        work = task(wait_for).remote(gates.of(0))
        eventually(lambda: state_of(child)["placed"] == 1, PATIENCE_S, "it runs")
        assert below.node_id() == below.id != node.node_id()
        members: Any = two
        alive = {each.node_id for each in members.list_all_nodes()}
        assert below.physical_node_id() == node.physical_node_id()
        assert node.physical_node_id() in alive
        wanted = {"index": "0", VNODE: node.id, VCLUSTER: cluster.id}
        assert wanted.items() <= node.node_labels().items()
        assert {VNODE: below.id, VCLUSTER: child.id}.items() <= below.node_labels().items()
        assert below.node_labels()["index"] == "0", "labels are inherited"
        assert (node.total_resources(), node.avail_resources()) == ({"CPU": 2}, {"CPU": 1})
        assert node.used_resources() == {"CPU": 1}
        assert below.used_resources() == below.total_resources() == {"CPU": 1}
        assert below.avail_resources() == {}
        assert below.parent_node() == node
        assert node.parent_node() is None
        gates.open(0)
        got(work)


def test_ray_tells_of_the_virtual_cluster_alone(two: Cluster) -> None:
    with inside(two, fixed(2)) as cluster:
        (node,) = cluster.nodes()
        assert API.cluster_resources() == {"CPU": 2}
        assert API.available_resources() == {"CPU": 2}
        (row,) = API.nodes()
        assert row["NodeID"] == node.physical_node_id()
        assert row["Alive"]
        assert row["Resources"] == {"CPU": 2}
        found = got(task(seen).remote())
        machines = [node.physical_node_id()]
        assert found == ({"CPU": 2}, {"CPU": 1}, machines, cluster.id, node.id)
        with fixed(1) as child:
            assert API.cluster_resources() == {"CPU": 1}
            assert got(task(seen).remote())[3] == child.id
        with pytest.raises(FabricError):
            fabric.current_node()
    assert API.cluster_resources()["CPU"] == 8
    assert len(ray.nodes()) == 2  # type: ignore[no-untyped-call]
    with pytest.raises(FabricError):
        fabric.current_cluster()


@pytest.mark.soak
def test_libraries_are_told_how_far_a_cluster_could_grow(two: Cluster, gates: Gates) -> None:
    from fedpilot.fabric.inside.submission import attainable_nodes

    with inside(two, flexible(1, 3)) as cluster:
        assert sum(each["Resources"]["CPU"] for each in attainable_nodes(cluster.id)) == 3
        with flexible(1) as child:
            assert sum(each["Resources"]["CPU"] for each in attainable_nodes(child.id)) == 3
        assert all(
            each["Resources"]["object_store_memory"] for each in attainable_nodes(cluster.id)
        )
    with inside(two, fixed(2)) as cluster:
        (row,) = attainable_nodes(cluster.id)
        assert row["Resources"]["CPU"] == 2
