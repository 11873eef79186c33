"""A Ray of several machines on this host, and what is on it that is not ours."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedpilot import fabric
from light_ray import light_ray
from real_ray import ENVIRONMENT

PATIENCE_S = 150.0
CPUS = 4


@dataclass
class Machines:
    """A Ray of a head and more machines, all on this host, with this process as a driver of it."""

    cluster: Cluster

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    @property
    def head(self) -> str:
        return str(self.cluster.head_node.node_id)

    @property
    def ledger(self) -> Path:
        """The file that the manager writes."""
        folder: str = self.cluster.head_node.get_session_dir_path()
        return Path(folder) / "fedpilot" / "ledger.sqlite"


@contextlib.contextmanager
def ray_machines(count: int, cpus: float, **head: Any) -> Iterator[Cluster]:
    """A Ray of so many machines, all on this host, of which this process may be a driver.

    `head` is what else the first one is started with.
    """
    folder = tempfile.mkdtemp(prefix="ray-")
    dashboard = bool(head.get("include_dashboard"))
    with pytest.MonkeyPatch.context() as environment, light_ray(dashboard=dashboard):
        for name in ("RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
            environment.delenv(name, raising=False)
        for name in ("RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED"):
            environment.setenv(name, ENVIRONMENT[name])
        node: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": 10**8}
        light = {"include_dashboard": False, "no_monitor": True}
        first = {**node, **light, "temp_dir": folder, **head}
        cluster = Cluster(initialize_head=True, head_node_args=first)
        try:
            for _ in range(count - 1):
                cluster.add_node(**node)
            yield cluster
        finally:
            fabric.shutdown()
            cluster.shutdown()  # type: ignore[no-untyped-call]
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def machines(count: int = 3, cpus: float = CPUS) -> Iterator[Machines]:
    """Start so many machines, and end them."""
    with ray_machines(count, cpus) as cluster:
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield Machines(cluster)


def counter() -> Any:
    """An actor that says which process it is, and how often it was asked."""

    class Asked:
        def __init__(self) -> None:
            self.times = 0

        def ask(self) -> tuple[int, int]:
            import os

            self.times += 1
            return os.getpid(), self.times

    return ray.remote(num_cpus=1, max_restarts=-1)(Asked)  # ships by value from inside here


class Steady:
    """An actor in a placement group that must not notice anything."""

    def __init__(self, group: PlacementGroup) -> None:
        self._group = group
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        self._actor = counter().options(scheduling_strategy=where).remote()
        self._pid, self._asked = ray.get(self._actor.ask.remote(), timeout=PATIENCE_S)

    def check(self) -> None:
        """Its placement group is there, it is the same process, and no call was lost."""
        state = placement_group_table(self._group)["state"]
        assert state == "CREATED"
        self._asked += 1
        answer = ray.get(self._actor.ask.remote(), timeout=PATIENCE_S)
        assert answer == (self._pid, self._asked)


@contextlib.contextmanager
def foreign(at: Machines) -> Iterator[Steady]:
    """A placement group on the head machine that we did not make, with an actor in it."""
    here = [{"ray.io/node-id": at.head}]
    group = placement_group([{"CPU": 1}], name="somebody else's", bundle_label_selector=here)
    assert group.wait(PATIENCE_S)
    yield Steady(group)
    ray.util.remove_placement_group(group)


def handle(group: str) -> PlacementGroup:
    """A placement group by the id that a snapshot says."""
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group)))
