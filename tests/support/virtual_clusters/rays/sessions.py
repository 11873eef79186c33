"""This process as a job inside a virtual cluster, or inside none, on a real Ray."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import ray
from ray.cluster_utils import Cluster

from fedpilot import fabric
from fedpilot.fabric import (
    FixedSizeNode,
    FixedSizeNodes,
    KeeperSettings,
    SchedulingPolicy,
    VirtualCluster,
    VirtualClusterInfo,
    VirtualClusters,
)
from rays.machines import PATIENCE_S, ray_machines

LEASE_S = 1.0


@contextlib.contextmanager
def machines(count: int, cpus: float) -> Iterator[Cluster]:
    """A Ray whose manager takes loans back soon."""
    with ray_machines(count, cpus) as cluster:
        fabric.shutdown()
        ray.init(cluster.address, logging_level=logging.ERROR, log_to_driver=False)
        VirtualClusters(KeeperSettings(lease_s=LEASE_S)).snapshot()
        ray.shutdown()
        yield cluster


@contextlib.contextmanager
def job(on: Cluster, spec: VirtualCluster) -> Iterator[VirtualClusterInfo]:
    """This process as a job of its own, inside a virtual cluster."""
    fabric.shutdown()
    made = fabric.init(
        on.address,
        virtual_cluster=spec,
        logging_level=logging.ERROR,
        log_to_driver=False,
        wait_s=60,
    )
    assert made is not None
    try:
        yield made
    finally:
        fabric.shutdown()


@contextlib.contextmanager
def inside(on: Cluster, spec: VirtualCluster) -> Iterator[VirtualClusterInfo]:
    """This process inside a virtual cluster, as part of a job that stays: so its workers do too."""
    if not ray.is_initialized():
        fabric.init(on.address, logging_level=logging.ERROR, log_to_driver=False)
    with spec as made:
        yield made


@contextlib.contextmanager
def outside(on: Cluster) -> Iterator[VirtualClusters]:
    """This process as a job inside no virtual cluster."""
    fabric.shutdown()
    ray.init(on.address, logging_level=logging.ERROR, log_to_driver=False)
    try:
        yield VirtualClusters()
    finally:
        fabric.shutdown()


def fixed(
    *cpus: float, policy: SchedulingPolicy = SchedulingPolicy.PACK, labelled: bool = False
) -> VirtualCluster:
    """A virtual cluster of fixed-size nodes."""
    nodes = tuple(
        FixedSizeNode(resources={"CPU": each}, labels={"index": str(i)} if labelled else {})
        for i, each in enumerate(cpus)
    )
    return VirtualCluster(fixed_size_nodes=(FixedSizeNodes(nodes=nodes, scheduling_policy=policy),))


def flexible(least: float, most: float | None = None) -> VirtualCluster:
    """A virtual cluster that grows."""
    limit = {} if most is None else {"CPU": most}
    return VirtualCluster(flex_resource_min={"CPU": least}, flex_resource_max=limit)


def got(ref: Any) -> Any:
    """What a task returns."""
    return ray.get(ref, timeout=PATIENCE_S)
