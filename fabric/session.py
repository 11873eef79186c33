"""Jobs and blocks of code inside a virtual cluster: `init`, `with`, and where one is.

`init` is what the proposal has as `ray.init(virtual_cluster=...)` (seed 000, "Job API").
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from . import inside, reaching, where
from .core.records import ROOT
from .errors import FabricError, NotInTime
from .introspection import VirtualClusterInfo, VirtualNodeInfo
from .spec import VirtualCluster
from .virtual_clusters import VirtualClusters

WAIT_S = 24 * 3600.0
"""How long a job waits for its virtual cluster unless it says otherwise."""


def init(
    address: str | None = None,
    *,
    virtual_cluster: VirtualCluster | Mapping[str, Any] | str | None = None,
    priority: int = 0,
    wait_s: float = WAIT_S,
    runtime_env: Mapping[str, Any] | None = None,
    **options: Any,
) -> VirtualClusterInfo | None:
    """Initialize Ray as `ray.init` does, and work inside a virtual cluster from then on.

    `virtual_cluster` is a spec, for a virtual cluster that begins now and ends with this job, or
    the name of one that is there. Without it the job runs in the default virtual cluster, that is,
    on all of Ray that is free, and can enter others by `with`. Waits for `wait_s` seconds at most
    in the queue; then raises NotInTime. SpecError, NeverFits.
    """
    import ray

    given = virtual_cluster or _of_the_job()
    if isinstance(given, Mapping):
        given = VirtualCluster.from_dict(given)
    name = given if isinstance(given, str) else f"job-{secrets.token_hex(4)}"
    reaching.forget()
    env = dict(runtime_env or {})
    env["worker_process_setup_hook"] = inside.SETUP_HOOK
    if given is not None:
        env["env_vars"] = {**env.get("env_vars", {}), where.JOB_VARIABLE: name}
    ray.init(address, runtime_env=env, **options)
    try:
        inside.install()
        if given is None:
            return None
        asking = VirtualClusters()
        if isinstance(given, VirtualCluster):
            _begin(asking, name, given, parent=ROOT, priority=priority, wait_s=wait_s)
        else:
            asking.show(name)
        os.environ[where.JOB_VARIABLE] = name
        inside.announce(name)
    except BaseException:
        shutdown()
        raise
    return VirtualClusterInfo(name)


def shutdown() -> None:
    """Leave Ray; the virtual clusters of this job end."""
    import ray

    os.environ.pop(where.JOB_VARIABLE, None)
    reaching.forget()
    ray.shutdown()


@contextlib.contextmanager
def entered(spec: VirtualCluster, *, wait_s: float = WAIT_S) -> Iterator[VirtualClusterInfo]:
    """A virtual cluster inside the current one, for as long as the block runs."""
    import ray

    inside.install()
    parent = where.enclosing() or ROOT
    name = f"{'vc' if parent == ROOT else parent}-{secrets.token_hex(4)}"
    asking = VirtualClusters()
    _begin(asking, name, spec, parent=parent, priority=0, wait_s=wait_s)
    try:
        with where.inside(name):
            yield VirtualClusterInfo(name)
    finally:
        if ray.is_initialized():
            with contextlib.suppress(FabricError):  # it ended with what it was in
                asking.delete(name)


def current_cluster() -> VirtualClusterInfo:
    """The virtual cluster that this process works in. FabricError outside of all."""
    name = where.current_id()
    if name is None:
        raise FabricError("this process works in no virtual cluster: see fedpilot.fabric.init")
    return VirtualClusterInfo(name)


def current_node() -> VirtualNodeInfo:
    """The virtual node that this worker runs in. FabricError for drivers, which run in none."""
    found = where.current_vnode()
    if found is None:
        raise FabricError("this process runs in no virtual node: only tasks and actors do")
    return VirtualNodeInfo(*found)


def _begin(
    asking: VirtualClusters,
    name: str,
    spec: VirtualCluster,
    *,
    parent: str,
    priority: int,
    wait_s: float,
) -> None:
    """Make a virtual cluster, or take the request back if it has to wait for too long."""
    try:
        found = asking.create(name, spec, parent=parent, priority=priority, wait_s=wait_s)
    except BaseException:
        with contextlib.suppress(FabricError):
            asking.delete(name)
        raise
    if found["state"] in ("waiting", "starting"):
        asking.delete(name)
        raise NotInTime(name, wait_s, found["reason"])


def _of_the_job() -> str | None:
    """The virtual cluster that a submitted job was given."""
    return os.environ.get(where.JOB_VARIABLE)
