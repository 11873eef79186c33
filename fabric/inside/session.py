"""Runs jobs and blocks inside a virtual cluster: the proposal's "Job API" (seed 000) as `init`."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from typing import Any, Unpack

from ..core.records import ROOT, has_started
from ..errors import FabricError, NameTaken, NotInTime
from ..ray import private_ray
from ..spec import QueueOptions, VirtualCluster
from . import context, hooks, manager_client
from .introspection import VirtualClusterInfo, VirtualNodeInfo
from .virtual_clusters import WAIT_S, VirtualClusters


def init(
    address: str | None = None,
    *,
    virtual_cluster: VirtualCluster | Mapping[str, Any] | str | None = None,
    priority: int = 0,
    project: str = "",
    pool: str = "",
    priority_class: str = "",
    preemptible: bool | None = None,
    wait_s: float = WAIT_S,
    runtime_env: Mapping[str, Any] | None = None,
    **options: Any,
) -> VirtualClusterInfo | None:
    """Initialize Ray as `ray.init` does, and work inside a virtual cluster from then on.

    `virtual_cluster` is the spec of a new one, which ends with this job, or the name of one that
    exists or waits. Without it the job runs on all free resources of Ray, and can enter others by
    `with`. A new one waits as `priority`, `project`, `pool`, `priority_class` and `preemptible`
    say (`QueueOptions`). NotInTime after `wait_s` in the queue; SpecError, NeverFits,
    NoSuchCluster.
    """
    private_ray.require(private_ray.INSIDE, private_ray.MANAGER)
    import ray

    if not ray.is_initialized():
        manager_client.forget()
    given = virtual_cluster or os.environ.get(context.JOB_VARIABLE)
    if isinstance(given, Mapping):
        given = VirtualCluster.from_dict(given)
    name = given if isinstance(given, str) else f"job-{secrets.token_hex(4)}"
    env = hooks.environment_inside(None if given is None else name, runtime_env)
    ray.init(address, runtime_env=env, **options)
    try:
        hooks.install()
        if given is None:
            return None
        asking = VirtualClusters()
        if isinstance(given, VirtualCluster):
            queue = QueueOptions(
                priority=priority,
                project=project,
                pool=pool,
                priority_class=priority_class,
                preemptible=preemptible,
            )
            _begin(asking, name, given, parent=ROOT, wait_s=wait_s, **queue)
        else:
            asking.wait(name, wait_s)
        context.join(name)
        hooks.announce(name)
    except BaseException:
        shutdown()
        raise
    return VirtualClusterInfo(name)


def shutdown() -> None:
    """Disconnect from Ray; this job's virtual clusters end."""
    import ray

    manager_client.forget()
    ray.shutdown()


def enter(spec: VirtualCluster) -> VirtualClusterInfo:
    """Create a virtual cluster inside the current one, and work in it until `leave`."""
    hooks.install()
    parent = context.enclosing() or ROOT
    name = f"vc-{secrets.token_hex(6)}"
    _begin(VirtualClusters(), name, spec, parent=parent, with_process=True)
    context.enter(context.Block(name, spec))
    return VirtualClusterInfo(name)


def leave(spec: VirtualCluster) -> None:
    """End the virtual cluster that was last entered with this spec."""
    import ray

    block = context.leave(spec)
    if block is not None and ray.is_initialized():
        with contextlib.suppress(FabricError):  # it ended with its parent
            VirtualClusters().delete(block.cluster)


def current_cluster() -> VirtualClusterInfo:
    """The virtual cluster that this process works in. FabricError if there is none."""
    name = context.current_id()
    if name is None:
        raise FabricError("this process works in no virtual cluster: see fedpilot.fabric.init")
    return VirtualClusterInfo(name)


def current_node() -> VirtualNodeInfo:
    """The virtual node that this worker runs in. FabricError for drivers, which run in none."""
    found = context.current_vnode()
    if found is None:
        raise FabricError("this process runs in no virtual node: only tasks and actors do")
    return VirtualNodeInfo(*found)


def _begin(
    asking: VirtualClusters,
    name: str,
    spec: VirtualCluster,
    *,
    parent: str,
    wait_s: float = WAIT_S,
    with_process: bool = False,
    **queue: Unpack[QueueOptions],
) -> None:
    """Create a virtual cluster; if it waits for too long, withdraw the request. NotInTime."""
    try:
        found = asking.create(
            name, spec, parent=parent, wait_s=wait_s, with_process=with_process, **queue
        )
    except NameTaken:
        raise
    except BaseException:
        with contextlib.suppress(FabricError):
            asking.delete(name)
        raise
    if not has_started(found["state"]):
        asking.delete(name)
        raise NotInTime(name, wait_s, found["reason"])
