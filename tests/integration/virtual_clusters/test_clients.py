"""Drivers and workers inside virtual clusters on a real Ray of one machine."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedpilot import fabric
from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, In, VirtualCluster, VirtualClusters
from fedpilot.fabric.jobs.confine import environment
from rays.machines import ray_machines
from real_ray import ENVIRONMENT, eventually

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.own_process,
]

PATIENCE_S = 60.0
ONE = VirtualCluster(flex_resource_min={"CPU": 1}, flex_resource_max={"CPU": 1})
TWO = VirtualCluster(flex_resource_min={"CPU": 2}, flex_resource_max={"CPU": 2})
QUIET: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A Ray of one machine with four CPUs."""
    with ray_machines(1, 4) as cluster:
        yield str(cluster.address)


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> Iterator[None]:
    """What is sent to workers goes there whole: they cannot import this module."""
    pickling: Any = ray.cloudpickle  # type: ignore[attr-defined]
    pickling.register_pickle_by_value(sys.modules[__name__])
    yield
    pickling.unregister_pickle_by_value(sys.modules[__name__])


@contextlib.contextmanager
def job(address: str, spec: VirtualCluster | str) -> Iterator[str]:
    """This process as a job inside a virtual cluster."""
    made = fabric.init(address, virtual_cluster=spec, wait_s=60, **QUIET)
    assert made is not None
    try:
        yield made.id
    finally:
        fabric.shutdown()


def task(function: Any, **options: Any) -> Any:
    """A function as a task of one CPU."""
    return ray.remote(**{"num_cpus": 1, **options})(function)


def got(work: Any) -> Any:
    """What work returns, in time."""
    return ray.get(work, timeout=PATIENCE_S)


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def current() -> str:
    return fabric.current_cluster().id


def label() -> str:
    """Of the virtual node that this worker runs in."""
    return fabric.current_node().node_labels()["rank"]


def meet(folder: str) -> str:
    """The label, once both nodes are used at the same time."""
    mine = label()
    (Path(folder) / mine).touch()
    deadline = time.monotonic() + PATIENCE_S / 2
    while len(list(Path(folder).iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    return mine


def test_a_task_that_returns_nothing_runs_although_it_has_to_wait(
    address: str, tmp_path: Path
) -> None:
    def touch(path: str) -> None:
        Path(path).touch()

    with job(address, ONE) as name:
        first = task(nap).remote(1.0)
        mark = tmp_path / "mark"
        assert task(touch, num_returns=0).remote(str(mark)) is None
        got(first)
        eventually(mark.exists, PATIENCE_S, "it runs")

        def idle() -> bool:
            work = VirtualClusters().show(name)["work"]
            return not any(work.values())

        eventually(idle, PATIENCE_S, "its end is told")


@pytest.mark.soak
def test_two_nodes_of_a_group_on_one_machine_are_told_apart(address: str, tmp_path: Path) -> None:
    nodes = [FixedSizeNode(resources={"CPU": 1}, labels={"rank": rank}) for rank in "01"]
    spec = VirtualCluster(fixed_size_nodes=[FixedSizeNodes(nodes=nodes)])
    with job(address, spec):
        for rank in "01":
            bound = spec.options(task(label), node_labels={"rank": In(rank)})
            assert got(bound.remote()) == rank
        assert sorted(got([task(meet).remote(str(tmp_path)) for _ in range(2)])) == ["0", "1"]
        actor: Any = ray.remote(num_cpus=1)(type("Told", (), {"label": lambda self: label()}))
        told = spec.options(actor, node_labels={"rank": In("1")}).remote()
        assert got(told.label.remote()) == "1"


@pytest.mark.soak
def test_threads_enter_one_spec_each_for_itself(address: str) -> None:
    there = threading.Barrier(2)
    found: dict[str, list[str]] = {}
    wrong: list[BaseException] = []

    def use(name: str) -> None:
        try:
            with ONE as mine:
                there.wait(PATIENCE_S)
                found[name] = [mine.id, current(), got(task(current).remote())]
                there.wait(PATIENCE_S)
        except BaseException as error:
            wrong.append(error)

    with job(address, TWO) as name:
        threads = [threading.Thread(target=use, args=(each,)) for each in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert all(len({*each}) == 1 for each in found.values()), found
        assert found["a"] != found["b"]
        assert VirtualClusters().show(name)["children"] == []


@pytest.mark.soak
def test_placement_groups_fit_into_names_of_any_length(address: str) -> None:
    name = "n" * 63
    ray.init(address, **QUIET)
    VirtualClusters().create(name, TWO, detached=True)
    fabric.shutdown()
    try:
        with job(address, name):
            group = placement_group([{"CPU": 1}])
            there = PlacementGroupSchedulingStrategy(group)
            inside = got(task(current, scheduling_strategy=there).remote())
            assert fabric.VirtualClusterInfo(inside).parent_cluster() == fabric.VirtualClusterInfo(
                name
            )
            remove_placement_group(group)
    finally:
        ray.init(address, **QUIET)
        VirtualClusters().delete(name)
        fabric.shutdown()


TWICE = """
import ray, time

@ray.remote
def group(seconds):
    time.sleep(seconds)
    return ray.get_runtime_context().get_placement_group_id() is not None

ray.init(logging_level="ERROR")
print(ray.cluster_resources()["CPU"], ray.get(group.remote(0)), flush=True)
left = group.remote(60)
time.sleep(0.5)
ray.shutdown()
ray.init(logging_level="ERROR")
began = time.monotonic()
groups = ray.get([group.remote(0.1) for _ in range(8)], timeout=60)
assert time.monotonic() - began < 15, "it waits for work of the past"
print(ray.cluster_resources()["CPU"], all(groups), flush=True)
"""


def test_an_unmodified_script_may_connect_twice(address: str, tmp_path: Path) -> None:
    ray.init(address, **QUIET)
    VirtualClusters().create("twice", ONE, detached=True)
    fabric.shutdown()
    script = tmp_path / "script.py"
    script.write_text(TWICE)
    try:
        ran = subprocess.run(
            [sys.executable, str(script)],
            env={**ENVIRONMENT, **environment("twice", address)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (ran.returncode, ran.stdout.split()) == (0, ["1.0", "True"] * 2), ran.stderr
    finally:
        ray.init(address, **QUIET)
        VirtualClusters().delete("twice")
        fabric.shutdown()


def test_a_placement_group_of_an_actor_ends_with_it(address: str) -> None:
    class Holds:
        def hold(self) -> str:
            self.group = placement_group([{"CPU": 1}])
            assert self.group.wait(PATIENCE_S)
            return str(self.group.id.hex())

    with job(address, TWO) as name:
        made: Any = ray.remote(num_cpus=1)(Holds).remote()
        got(made.hold.remote())
        clusters = VirtualClusters()
        assert len(clusters.show(name)["children"]) == 1
        ray.kill(made)
        eventually(lambda: not clusters.show(name)["children"], PATIENCE_S, "it ends")
