"""What runs inside virtual clusters goes on when one of the machines below it dies."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from fedpilot import fabric
from fedpilot.fabric import (
    FixedSizeNode,
    FixedSizeNodes,
    SchedulingPolicy,
    VirtualCluster,
    VirtualClusters,
)
from rays.machines import ray_machines
from real_ray import eventually

pytestmark = [
    pytest.mark.ray,
    pytest.mark.own_process,
    pytest.mark.slow,
    pytest.mark.timeout(240),
]

PATIENCE_S = 60.0
CPUS = 2
QUIET: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head without CPUs."""
    pickling: Any = ray.cloudpickle  # type: ignore[attr-defined]
    pickling.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this module
    with ray_machines(1, 0) as found:
        yield found
    pickling.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def machines(cluster: Cluster) -> Cluster:
    """Two machines beside the head."""
    workers = sorted(cluster.worker_nodes, key=lambda node: str(node.node_id))
    for node in workers[2:]:
        cluster.remove_node(node)
    while len(cluster.worker_nodes) < 2:
        another(cluster)
    return cluster


def another(cluster: Cluster) -> Any:
    return cluster.add_node(num_cpus=CPUS, object_store_memory=10**8)


def dies(cluster: Cluster, machine: str) -> None:
    (node,) = [each for each in cluster.worker_nodes if each.node_id == machine]
    cluster.remove_node(node, allow_graceful=False)


@contextlib.contextmanager
def everything(cluster: Cluster) -> Iterator[str]:
    """A job inside a virtual cluster that holds both machines."""
    spec = VirtualCluster(flex_resource_min={"CPU": 2 * CPUS})
    made = fabric.init(str(cluster.address), virtual_cluster=spec, wait_s=60, **QUIET)
    assert made is not None
    try:
        yield made.id
    finally:
        fabric.shutdown()


def here(seconds: float = 0.0) -> str:
    time.sleep(seconds)
    return str(ray.get_runtime_context().get_node_id())


@pytest.mark.soak
def test_a_task_on_a_nested_node_is_tried_again_on_another_machine(machines: Cluster) -> None:
    nap = ray.remote(num_cpus=1, max_retries=3)(here)
    apart = FixedSizeNodes(
        nodes=(FixedSizeNode(resources={"CPU": 1}),) * 2,
        scheduling_policy=SchedulingPolicy.STRICT_SPREAD,
    )
    with everything(machines), VirtualCluster(fixed_size_nodes=(apart,)) as inner:
        assert inner is not None
        before = ray.get([nap.remote() for _ in range(2)], timeout=PATIENCE_S)
        running = [nap.remote(8.0) for _ in range(2)]
        time.sleep(2.0)
        lives, lost = sorted({*before})
        another(machines)
        dies(machines, lost)
        after = ray.get(running, timeout=PATIENCE_S)
        assert lost not in after
        assert lives in after

        def whole() -> bool:
            found = VirtualClusters().show(inner.id)
            hosts = {node["machine"] for node in found["nodes"]}
            return found["state"] == "active" and len(hosts) == 2 and lost not in hosts

        eventually(whole, PATIENCE_S, "it has both of its nodes again")


@pytest.mark.soak
def test_a_lost_result_is_made_once_more(machines: Cluster) -> None:
    big = ray.remote(num_cpus=1, max_retries=3)(lambda: bytes(10**6))
    with everything(machines):
        where = sorted(node.node_id for node in machines.worker_nodes)[0]
        there = NodeAffinitySchedulingStrategy(where, soft=True)
        made = big.options(scheduling_strategy=there).remote()
        ray.wait([made], timeout=PATIENCE_S, fetch_local=False)
        time.sleep(2.0)  # the task is forgotten by now
        dies(machines, where)
        assert len(ray.get(made, timeout=PATIENCE_S)) == 10**6


@pytest.mark.soak
def test_a_placement_group_inside_is_whole_again(machines: Cluster) -> None:
    nap = ray.remote(num_cpus=1)(here)
    with everything(machines) as job:
        group = placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD")
        assert group.wait(60)

        def on(bundle: int) -> str:
            strategy = PlacementGroupSchedulingStrategy(group, bundle)
            task = nap.options(scheduling_strategy=strategy).remote()
            return str(ray.get(task, timeout=PATIENCE_S))

        lost = on(1)
        new = another(machines)
        dies(machines, lost)
        assert on(1) == new.node_id
        assert on(0) != lost
        states = {each["id"]: each["state"] for each in VirtualClusters().snapshot()["clusters"]}
        assert states[job] == "active" or eventually(
            lambda: VirtualClusters().show(job)["state"] == "active", 60.0, "the job is whole"
        )
