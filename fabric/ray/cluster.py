"""RayCluster: the one Ray cluster that this process starts, connects to or attaches to.

Groups and actors have driver lifetime: Ray removes them when the process ends in any way. Ray
reads its settings on import, so functions import it.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

from fedpilot.common.host.machine import load, usable_cpus, usable_gpus

from ..core.records import Bundle, Machine, MachineId, SchedulingPolicy
from ..core.resources import Resources
from ..core.selectors import to_ray
from ..errors import ClusterStartFailed, FabricError, GangExists, SpecError
from . import home, private_ray
from .connection import address_of_this_machine, attached, claim, set_environment
from .control_plane.probe import auth_mode_of, probe
from .failures import brief
from .local_machine import niceness_of_workers
from .starting.embedded import (
    NICENESS,
    QUIET,
    START_S,
    RayThread,
    TooSlow,
    niceness,
    quick_settings,
)
from .workers.serialization import as_actor
from .workers.worker import RayGroup, is_taken

CONNECT_S = 120.0
"""How long a running Ray may take to answer, and to accept this process."""


class RayCluster:
    """The Ray cluster that this process uses."""

    def __init__(
        self, undo: ExitStack, started: RayThread | None = None, *, shared: bool = False
    ) -> None:
        self.shared = shared
        self._undo = undo
        self._started = started
        self._groups: set[RayGroup] = set()
        self._as_actor: Callable[[Any], Any] = functools.cache(as_actor)
        self._closed = False
        atexit.register(self.close)

    @classmethod
    def embedded(
        cls,
        num_cpus: int | None = None,
        num_gpus: int | None = None,
        object_store_memory: int | None = None,
        timeout_s: float = START_S,
    ) -> RayCluster:
        """Start a private Ray on this machine."""
        with ExitStack() as undo:
            cluster = cls.starting(num_cpus, num_gpus, object_store_memory)
            undo.callback(cluster.close)
            cluster.wait(timeout_s)
            undo.pop_all()
        return cluster

    @classmethod
    def starting(
        cls,
        num_cpus: int | None = None,
        num_gpus: int | None = None,
        object_store_memory: int | None = None,
        *,
        processes: int = 0,
        preload: Sequence[str] = (),
    ) -> RayCluster:
        """Begin the start of an `embedded` Ray, and return at once; its first use waits for it.

        `processes` of its workers start with it, and import the modules of `preload` meanwhile.
        """
        with ExitStack() as undo:
            claim(undo)
            folder = undo.enter_context(home.own_folder())
            own = {
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN_PATH": str(home.write_token(folder)),
                NICENESS: str(niceness()),
                # Workers import what this process can import.
                "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            }
            set_environment(undo, {**QUIET, **quick_settings(preload), **own})
            ray = RayThread(
                private=True,
                processes=processes,
                address="local",
                num_cpus=usable_cpus() if num_cpus is None else num_cpus,
                num_gpus=usable_gpus() if num_gpus is None else num_gpus,
                object_store_memory=object_store_memory,
                include_dashboard=False,
                _temp_dir=str(folder),
            )
            undo.callback(ray.end)
            return cls(undo.pop_all(), ray)

    @classmethod
    def connect(
        cls, address: str, auth_mode: str | None = None, timeout_s: float = CONNECT_S
    ) -> RayCluster:
        """Attach to a running Ray cluster: `host:port` of its head, or `auto`.

        The default of `auth_mode` is RAY_AUTH_MODE, or else `disabled`. In mode `token`,
        RAY_AUTH_TOKEN_PATH names the token's file. Raises ClusterUnreachable at once if there is no
        Ray, and after `timeout_s` if it is too slow.
        """
        deadline = time.monotonic() + timeout_s
        mode = auth_mode_of(auth_mode)
        with ExitStack() as undo:
            claim(undo)
            set_environment(undo, {**QUIET, "RAY_AUTH_MODE": mode})
            found = address_of_this_machine() if address == "auto" else address
            probe(found, mode, timeout_s)
            ray = attached(found, mode, deadline, timeout_s)
            undo.callback(ray.end)
            return cls(undo.pop_all(), ray, shared=True)

    @classmethod
    def attach(cls) -> RayCluster:
        """Use the Ray that this process has initialized, and leave it running on close."""
        import ray

        if not ray.is_initialized():
            raise FabricError("no Ray to attach to: call ray.init() first, or use embedded()")
        return cls(ExitStack())

    def wait(self, timeout_s: float = START_S) -> None:
        """Wait until this cluster can be used. ClusterStartFailed if it cannot be started."""
        if self._closed:
            raise FabricError("this cluster is closed; open it again to use it")
        if self._started is None:
            return
        try:
            self._started.wait(timeout_s)
        except TooSlow:
            raise ClusterStartFailed(f"it was not up after {timeout_s:g} s ({load()})") from None
        except Exception as error:
            raise ClusterStartFailed(brief(str(error))) from error

    def machines(self) -> tuple[Machine, ...]:
        self.wait()
        import ray

        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        return tuple(
            Machine(
                id=MachineId(node["NodeID"]),
                hostname=node["NodeManagerHostname"],
                total=_offered(node["Resources"]),
                labels=dict(node.get("Labels") or {}),
            )
            for node in sorted(nodes, key=lambda node: str(node["NodeID"]))
            if node["Alive"]
        )

    def create_group(
        self, name: str, bundles: Sequence[Bundle], policy: SchedulingPolicy
    ) -> RayGroup:
        self.wait()
        from ray.exceptions import RayError
        from ray.util import placement_group

        if is_taken(name):  # Ray would refuse it too, but print a message
            raise GangExists(name)
        selective = any(bundle.selector for bundle in bundles)
        labels = [machine.labels for machine in self.machines()] if selective else []
        try:
            made = placement_group(
                bundles=[bundle.resources.to_ray() for bundle in bundles],
                strategy=policy.value,
                name=name,
                bundle_label_selector=[to_ray(bundle.selector, labels) for bundle in bundles],
            )
        except ValueError as error:
            raise SpecError(f"Ray refuses the group {name!r}: {brief(str(error))}") from error
        except RayError as error:
            if "already exists" in str(error):  # another process was faster
                raise GangExists(name) from error
            raise FabricError(f"Ray refuses the group {name!r}: {brief(str(error))}") from error
        group = RayGroup(made, self._as_actor, self._groups.discard)
        self._groups.add(group)
        return group

    def adopt_group(self, id: str, bundles: Sequence[Resources]) -> RayGroup:
        made = private_ray.group_handle(id, [bundle.to_ray() for bundle in bundles])
        group = RayGroup(made, self._as_actor, self._groups.discard, adopted=True)
        self._groups.add(group)
        return group

    def worker_niceness(self) -> int | None:
        if self._started is not None and not self.shared:
            return os.nice(0) + niceness()
        import ray

        return niceness_of_workers(ray.get_runtime_context().gcs_address)

    def put(self, value: Any) -> Any:
        self.wait()
        import ray

        return ray.put(value)

    def close(self) -> None:
        """End all that this object started, and Ray if it started or joined it; repeatable."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        with self._undo, ExitStack() as groups:
            for group in tuple(self._groups):
                groups.callback(group.remove)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _offered(resources: Mapping[str, float]) -> Resources:
    """Drop what Ray counts for itself: where a node is, and its object store."""
    return Resources.of(
        {
            name: amount
            for name, amount in resources.items()
            if not name.startswith("node:") and name != "object_store_memory"
        }
    )
