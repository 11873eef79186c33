"""What only a real Ray can show: processes that die, clusters that are not ours, silence."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray
from ray.util import placement_group_table

from fedpilot.fabric import (
    ClusterStartFailed,
    ClusterUnreachable,
    FabricError,
    FixedSizeNode,
    FixedSizeNodes,
    Gang,
    GangExists,
    GangInfeasible,
    RayCluster,
    VirtualCluster,
    VirtualClusterManager,
    WorkerLost,
)
from fedpilot.fabric.ray.starting import embedded
from real_ray import ENVIRONMENT, REPOSITORY, eventually, free_port, ray_head

pytestmark = pytest.mark.ray

PATIENCE_S = 60.0
STOPPED_S = 22.0
"""Longer than `ray health-check` took on a busy machine until it was given up."""


def gang_of(count: int, **selector: str) -> VirtualCluster:
    node = FixedSizeNode(resources={"CPU": 1}, parent_node_selector=selector)
    return VirtualCluster(fixed_size_nodes=(FixedSizeNodes(nodes=(node,) * count),))


class Process:
    """A worker that says which process it is."""

    def pid(self) -> int:
        return os.getpid()

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def has(self, module: str) -> bool:
        return module in sys.modules

    def out_of_the_search_for_garbage(self) -> int:
        return gc.get_freeze_count()

    def hang(self) -> None:
        time.sleep(PATIENCE_S)


def folders() -> set[Path]:
    """The folders of embedded Rays."""
    return set(Path(tempfile.gettempdir()).glob("fedpilot-*"))


@pytest.fixture(scope="class")
def manager() -> Iterator[VirtualClusterManager]:
    with (
        RayCluster.embedded(num_cpus=2, num_gpus=0, object_store_memory=2**27) as cluster,
        VirtualClusterManager(cluster) as manager,
    ):
        yield manager


class TestEmbedded:
    """A Ray of our own."""

    def test_a_process_that_dies_is_a_lost_worker(self, manager: VirtualClusterManager) -> None:
        with manager.reserve(gang_of(1), name="run") as gang:
            worker = gang.start_worker(gang.vnodes[0], Process)
            pid = worker.call("pid").result(PATIENCE_S)
            hanging, behind = worker.call("hang"), worker.call("pid")
            os.kill(pid, signal.SIGKILL)
            assert isinstance(hanging.exception(PATIENCE_S), WorkerLost)
            assert isinstance(behind.exception(PATIENCE_S), WorkerLost)
            assert isinstance(worker.call("pid").exception(PATIENCE_S), WorkerLost)
            again = gang.start_worker(gang.vnodes[0], Process)
            assert again.call("pid").result(PATIENCE_S) != pid

    def test_release_removes_the_group_and_ends_the_processes(
        self, manager: VirtualClusterManager
    ) -> None:
        gang = manager.reserve(gang_of(2), name="run")
        workers = [gang.start_worker(vnode, Process) for vnode in gang.vnodes]
        pids = [worker.call("pid").result(PATIENCE_S) for worker in workers]
        gang.release()
        assert {group["state"] for group in placement_group_table().values()} == {"REMOVED"}
        eventually(lambda: not any(map(psutil.pid_exists, pids)), PATIENCE_S, "processes end")

    def test_a_selector_chooses_machines_by_their_labels(
        self, manager: VirtualClusterManager
    ) -> None:
        (node,) = ray.nodes()  # type: ignore[no-untyped-call]
        with manager.reserve(gang_of(1, **{"ray.io/node-id": node["NodeID"]}), name="run") as gang:
            assert gang.vnodes[0].machine == node["NodeID"]
            assert gang.vnodes[0].labels["ray.io/node-id"] == node["NodeID"]

    def test_conditions_that_ray_lacks_hold_all_the_same(
        self, manager: VirtualClusterManager
    ) -> None:
        here = {"ray.io/node-id": "exists()", "zone": "!exists()"}
        with manager.reserve(gang_of(1, **here), name="run") as gang:
            assert "ray.io/node-id" in gang.vnodes[0].labels
        with pytest.raises(GangInfeasible, match="no machine has the labels zone=exists"):
            manager.reserve(gang_of(1, zone="exists()"), name="run")

    def test_what_a_worker_begins_with_is_not_searched_for_garbage(
        self, manager: VirtualClusterManager
    ) -> None:
        with manager.reserve(gang_of(1), name="run") as gang:
            worker = gang.start_worker(gang.vnodes[0], Process)
            frozen = worker.call("out_of_the_search_for_garbage").result(PATIENCE_S)
            assert frozen > 10_000

    def test_cuda_is_not_hidden_from_workers_without_a_gpu(
        self, manager: VirtualClusterManager
    ) -> None:
        with manager.reserve(gang_of(1), name="run") as gang:
            worker = gang.start_worker(gang.vnodes[0], Process)
            hidden = worker.call("variable", "CUDA_VISIBLE_DEVICES").result(PATIENCE_S)
            assert hidden == os.environ.get("CUDA_VISIBLE_DEVICES")

    def test_a_process_has_one_ray(self, manager: VirtualClusterManager) -> None:
        with pytest.raises(FabricError, match="can use one only"):
            RayCluster.embedded()
        with pytest.raises(FabricError, match="can use one only"):
            RayCluster.connect("auto")

    def test_attaching_leaves_ray_running(self, manager: VirtualClusterManager) -> None:
        with RayCluster.attach() as cluster, VirtualClusterManager(cluster) as attached:
            attached.reserve(gang_of(1), name="attached")
        assert ray.is_initialized()
        with pytest.raises(FabricError, match="closed"):
            cluster.machines()
        assert {group["state"] for group in placement_group_table().values()} == {"REMOVED"}


def test_closing_twice_leaves_no_folder_no_variable_and_no_handler() -> None:
    handler = signal.getsignal(signal.SIGTERM)
    before, variables = folders(), dict(os.environ)
    cluster = RayCluster.embedded(num_cpus=1, num_gpus=0, object_store_memory=2**27)
    assert len(folders() - before) == 1
    assert os.environ["RAY_AUTH_MODE"] == "token"
    cluster.close()
    cluster.close()
    assert folders() <= before
    assert dict(os.environ) == variables
    assert signal.getsignal(signal.SIGTERM) == handler
    assert not ray.is_initialized()


def test_closing_answers_what_is_still_open() -> None:
    cluster = RayCluster.embedded(num_cpus=1, num_gpus=0, object_store_memory=2**27)
    with cluster:
        gang = VirtualClusterManager(cluster).reserve(gang_of(1), name="run")
        hanging = gang.start_worker(gang.vnodes[0], Process).call("hang")
    assert isinstance(hanging.exception(PATIENCE_S), WorkerLost)
    gang.release()


def test_a_ray_that_is_starting_is_waited_for_by_its_first_use() -> None:
    starting = RayCluster.starting(2, 0, 2**27, processes=2, preload=["colorsys", "no_such_module"])
    with starting as cluster:
        assert not ray.is_initialized()
        with pytest.raises(FabricError, match="can use one only"):
            RayCluster.embedded()
        with pytest.raises(ClusterStartFailed, match=r"not up after 0 s \(load "):
            cluster.wait(0.0)
        with VirtualClusterManager(cluster) as manager, manager.reserve(gang_of(2), name="g") as g:
            workers = [g.start_worker(vnode, Process) for vnode in g.vnodes]
            assert all(worker.call("has", "colorsys").result(PATIENCE_S) for worker in workers)


def test_the_processes_that_a_ray_starts_with_wait_for_their_gang() -> None:
    with RayCluster.starting(2, 0, 2**27, processes=2) as cluster:
        cluster.wait()
        idle: set[int] = set()

        def both() -> bool:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    idle.update([process.pid] * ("ray::IDLE" in process.cmdline()[:1]))
            return len(idle) == 2

        eventually(both, PATIENCE_S, "two processes wait")
        with VirtualClusterManager(cluster) as manager, manager.reserve(gang_of(2), name="g") as g:
            time.sleep(3.0)  # Ray ends who was idle for a second, if no CPU is free
            workers = [g.start_worker(vnode, Process) for vnode in g.vnodes]
            assert {worker.call("pid").result(PATIENCE_S) for worker in workers} == idle


@pytest.mark.parametrize("later_s", [0.0, pytest.param(0.3, marks=pytest.mark.soak), 1.0])
def test_a_ray_that_is_closed_as_it_starts_leaves_nothing(later_s: float) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    before, variables = folders(), dict(os.environ)
    children = psutil.Process().children()
    cluster = RayCluster.starting(1, 0, 2**27, processes=1)
    time.sleep(later_s)
    cluster.close()
    assert folders() <= before
    assert dict(os.environ) == variables
    assert signal.getsignal(signal.SIGTERM) == handler
    assert not ray.is_initialized()
    assert psutil.Process().children() == children
    with pytest.raises(FabricError, match="closed"):
        cluster.wait()


def test_what_keeps_ray_from_starting_is_said_whenever_it_is_used() -> None:
    before = folders()
    with RayCluster.starting(object_store_memory=1) as cluster:
        for use in (cluster.wait, cluster.machines):
            with pytest.raises(ClusterStartFailed, match="memory"):
                use()
    assert folders() <= before


def test_a_ray_that_we_do_not_know_starts_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "KNOWN", ("0.",))
    with RayCluster.starting(1, 0, 2**27, processes=1, preload=["colorsys"]) as cluster:
        assert len(cluster.machines()) == 1


def test_there_is_nothing_to_attach_to() -> None:
    with pytest.raises(FabricError, match="no Ray to attach to"):
        RayCluster.attach()


ONE_WORKER = """
import os, signal, sys, time
from fedpilot.fabric import *

class Process:
    def pid(self): return os.getpid()
    def hang(self): time.sleep(60)

node = FixedSizeNode(resources={"CPU": 1})
spec = VirtualCluster(fixed_size_nodes=(FixedSizeNodes(nodes=(node,)),))
"""
LOSES_A_WORKER = """
with RayCluster.embedded(num_cpus=1, num_gpus=0, object_store_memory=2**27) as cluster:
    with VirtualClusterManager(cluster) as manager, manager.reserve(spec, name="run") as gang:
        worker = gang.start_worker(gang.vnodes[0], Process)
        pid = worker.call("pid").result(60)
        hanging = worker.call("hang")
        os.kill(pid, signal.SIGKILL)
        assert isinstance(hanging.exception(60), WorkerLost)
        again = gang.start_worker(gang.vnodes[0], Process)  # time for Ray to tell its driver
        again.call("pid").result(60)
"""
HOLDS_A_GANG = """
cluster = RayCluster.connect(sys.argv[1])
gang = VirtualClusterManager(cluster).reserve(spec, name="run")
worker = gang.start_worker(gang.vnodes[0], Process)
print(worker.call("pid").result(60), flush=True)
worker.call("hang").result()
"""
CONNECTS = """
import sys, time
from fedpilot.fabric import ClusterUnreachable, RayCluster

started = time.monotonic()
try:
    RayCluster.connect(sys.argv[1])
except ClusterUnreachable as error:
    print(f"{time.monotonic() - started:.1f} {error}")
"""


def python(*arguments: str, **variables: str) -> list[str]:
    """The command of a Python that finds our source, with variables of its own."""
    own = [f"{name}={value}" for name, value in variables.items()]
    return ["env", f"PYTHONPATH={REPOSITORY / 'src'}", *own, sys.executable, "-c", *arguments]


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = python(*arguments, **variables)
    return subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )


def test_ray_prints_nothing_of_its_own() -> None:
    done = run(ONE_WORKER + LOSES_A_WORKER)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture(scope="class")
def address() -> Iterator[str]:
    with ray_head(num_cpus=1) as address:
        yield address


def taken_over(manager: VirtualClusterManager) -> Gang:
    """The gang `run`, once it is seen that the driver which had it has ended."""
    found: list[Gang] = []

    def free() -> bool:
        try:
            found.append(manager.reserve(gang_of(1), name="run", timeout_s=PATIENCE_S))
        except GangExists:
            return False
        return True

    eventually(free, PATIENCE_S, "its name is free")
    return found[0]


class TestConnected:
    """A Ray that somebody else started."""

    def test_its_machines_can_be_reserved_and_it_goes_on_when_we_leave(self, address: str) -> None:
        for _ in range(2):
            with RayCluster.connect(address) as cluster:
                manager = VirtualClusterManager(cluster)
                gang = taken_over(manager)
                assert len(gang.vnodes) == 1
                nice = ray.remote(num_cpus=0)(lambda: os.nice(0)).remote()
                assert ray.get(nice, timeout=PATIENCE_S) == gang.load().niceness == 15

    def test_what_a_killed_driver_held_is_free_again(self, address: str) -> None:
        command = python(ONE_WORKER + HOLDS_A_GANG, address)
        with subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
        ) as driver:
            assert driver.stdout is not None
            pid = int(driver.stdout.readline())
            assert psutil.pid_exists(pid)
            driver.kill()
        eventually(lambda: not psutil.pid_exists(pid), PATIENCE_S, "the actor's process ends")
        with RayCluster.connect(address) as cluster, VirtualClusterManager(cluster) as manager:
            taken_over(manager)

    def test_the_successor_of_a_killed_driver_takes_over_at_once(self, address: str) -> None:
        command = python(ONE_WORKER + HOLDS_A_GANG, address)
        for _ in range(2):
            with subprocess.Popen(
                command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
            ) as driver:
                assert driver.stdout is not None
                assert int(driver.stdout.readline())
                driver.kill()

    @pytest.mark.timeout(600)
    def test_a_cluster_that_wants_a_token_takes_the_right_one_only(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("right", "wrong"):
            (tmp_path / name).write_text(name * 8)
            (tmp_path / name).chmod(0o600)
        monkeypatch.setitem(ENVIRONMENT, "RAY_AUTH_MODE", "token")
        monkeypatch.setitem(ENVIRONMENT, "RAY_AUTH_TOKEN_PATH", str(tmp_path / "right"))
        with ray_head(num_cpus=1) as address:
            accepted = run(CONNECTS, address)
            wrong = run(CONNECTS, address, RAY_AUTH_TOKEN_PATH=str(tmp_path / "wrong"))
            missing = run(CONNECTS, address, RAY_AUTH_TOKEN_PATH=str(tmp_path / "missing"))
            without = run(CONNECTS, address, RAY_AUTH_MODE="disabled")
        assert (accepted.stdout, accepted.stderr) == ("", "")
        for refused in (wrong, missing, without):
            waited_s, _, text = refused.stdout.partition(" ")
            assert float(waited_s) < 10
            assert "it refuses our token" in text
            assert refused.stderr == ""


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        pytest.param("127.0.0.1:{closed}", "nothing listens there", id="a port nobody listens on"),
        pytest.param("auto", "RAY_ADDRESS is not set", id="no cluster on this machine"),
        pytest.param("ray://127.0.0.1:10001", "expected host:port", id="a Ray Client address"),
        pytest.param("nonsense", "expected host:port", id="no port"),
    ],
)
def test_a_wrong_address_is_refused_at_once(
    address: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(ClusterUnreachable, match=reason):
        RayCluster.connect(address.format(closed=free_port()))
    assert not ray.is_initialized()


@pytest.mark.slow
def test_a_healthy_ray_that_does_not_answer_for_a_while_is_waited_for() -> None:
    with ray_head(num_cpus=1) as address:
        with RayCluster.connect(address):
            pass  # so that all of it has started
        here = f"--gcs_server_port={address.rpartition(':')[2]}"
        (control_plane,) = (
            process
            for process in psutil.process_iter(["name", "cmdline"])
            if process.info["name"] == "gcs_server" and here in (process.info["cmdline"] or ())
        )
        control_plane.suspend()
        threading.Timer(STOPPED_S, control_plane.resume).start()
        began = time.monotonic()
        done = run(CONNECTS, address)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert time.monotonic() - began > STOPPED_S
