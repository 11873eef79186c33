"""A Ray cluster of a head and three workers: declared, and by `ray start` alone.

The experiment of the KubeRay paper (WoC '21, section 4): the cluster is set up, then 100 tasks tell
their node. `ray start` is measured in two orders: workers one after another, and all at once when
the head has started. The declared one has a manager that runs already.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from measuring import Run, called, measured, parser, ratios, spread, table

SECTION = "lifecycle"
WORKERS, TASKS = 3, 100
PATIENCE_S = 300.0
MARK = "MEASURED_RAY"
FLAGS = ("--object-store-memory=100000000", "--min-worker-port=0", "--max-worker-port=0")
FLAGS += ("--dashboard-agent-listen-port=0", "--num-cpus=1")
DECLARED, ONE_BY_ONE, AT_ONCE = "declared", "ray start, one by one", "ray start, at once"


# -- one process ------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        port: int = one.getsockname()[1]
        return port


def nodes(address: str, token: str) -> int:
    """How many nodes the control plane knows; 0 while there is none."""
    import asyncio

    from fedpilot.fabric.errors import ClusterUnreachable
    from fedpilot.fabric.ray.control_plane.ray_nodes import RayNodes

    async def asked() -> int:
        there = RayNodes(address, token)
        try:
            return len((await there.look()).nodes)
        except ClusterUnreachable:
            return 0
        finally:
            await there.close()

    return asyncio.run(asked())


def joined(address: Callable[[], str | None], token: Callable[[], str], count: int) -> None:
    """Wait until so many nodes are there."""
    deadline = time.perf_counter() + PATIENCE_S
    while (there := address()) is None or nodes(there, token()) < count:
        if time.perf_counter() > deadline:
            sys.exit("the cluster has not come up in time")
        time.sleep(0.05)


def tasks(address: str, token_file: str) -> Run:
    """100 tasks that tell their node, from the start of their driver on."""
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=token_file)
    import ray

    began = time.perf_counter()
    ray.init(address=address, logging_level="ERROR", log_to_driver=False)

    @ray.remote(num_cpus=1)
    def name() -> str:
        return str(ray.get_runtime_context().get_node_id())

    ray.get([name.options(scheduling_strategy="SPREAD").remote() for _ in range(TASKS)])
    took = time.perf_counter() - began
    ray.shutdown()
    return {"tasks_s": took}


def started(words: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "ray.scripts.scripts", "start"),
            *(*words, *FLAGS, f"--node-name={secrets.token_hex(4)}"),
        ],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@contextlib.contextmanager
def by_hand(
    folder: Path, at_once: bool, workers: int = WORKERS
) -> Iterator[tuple[float, float, str, Path]]:
    """A cluster by `ray start`: seconds to the first process and to the last node."""
    mark = secrets.token_hex(8)
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    environment = {
        **os.environ,
        MARK: mark,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    address = f"127.0.0.1:{free_port()}"
    own = ["--include-dashboard=false", f"--ray-client-server-port={free_port()}"]
    own += [f"--port={address.rpartition(':')[2]}", f"--temp-dir={folder / 'ray'}"]
    try:
        began = time.perf_counter()
        head = started(["--head", *own], environment)
        first = time.perf_counter() - began
        head.wait(PATIENCE_S)
        words = [f"--address={address}"]
        left = workers
        while left:  # two that join at the same moment may fail, and are started again
            running = [started(words, environment) for _ in range(left if at_once else 1)]
            left -= sum(each.wait(PATIENCE_S) == 0 for each in running)
        joined(lambda: address, token.read_text, workers + 1)
        yield first, time.perf_counter() - began, address, token
    finally:
        from fedpilot.common.host.marked_processes import marked_processes, signal_all

        while left := marked_processes(MARK, mark):
            signal_all(left, signal.SIGKILL)
            time.sleep(0.05)


@contextlib.contextmanager
def by_declaration(folder: Path) -> Iterator[tuple[float, float, str, Path]]:
    """A declared cluster: seconds to the first act of its provider and to the last node."""
    from fedpilot.fabric.core.ray_clusters.declaration import RayClusterName
    from fedpilot.fabric.ray_clusters.declarations.documents import is_managed
    from fedpilot.fabric.ray_clusters.declarations.records import UNDECLARED
    from fedpilot.fabric.ray_clusters.declarations.store import RayClusterStore
    from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of

    small = {"num-cpus": "1", "object-store-memory": "100000000"}
    document = ray_cluster_of(
        {
            "metadata": {"name": "paper"},
            "spec": {
                "headGroupSpec": {"rayStartParams": {**small, "include-dashboard": "false"}},
                "workerGroupSpecs": [
                    {"groupName": "small-group", "replicas": WORKERS, "rayStartParams": small}
                ],
            },
        }
    ).document
    path = folder / "declared.sqlite"
    name = RayClusterName("paper")
    with RayClusterStore(path) as store:
        words = ["raycluster", "serve", "--store", str(path)]
        serving = subprocess.Popen(
            [sys.executable, "-m", "fedpilot", *words], stderr=subprocess.DEVNULL
        )
        try:
            while not is_managed(store):
                time.sleep(0.01)
            time.sleep(0.5)
            wall, began = time.time(), time.perf_counter()
            stored = store.apply(name, document, saw=UNDECLARED, by="", at=wall)
            machines = folder / "clusters" / stored.uid / "machines"
            while not machines.is_dir() or not any(machines.iterdir()):
                time.sleep(0.001)
            first = next(machines.iterdir()).stat().st_ctime - wall

            def address() -> str | None:
                return (store.status(stored.uid) or {}).get("address")

            token = folder / "clusters" / stored.uid / "token"
            joined(address, lambda: token.read_text(), WORKERS + 1)
            yield first, time.perf_counter() - began, address() or "", token
        finally:
            while (left := store.find(name)) is not None:
                store.delete(name, saw=left.revision, by="", at=time.time())
                time.sleep(0.05)
            serving.send_signal(signal.SIGTERM)
            serving.wait(PATIENCE_S)


def child(how: str) -> Run:
    """Set a cluster up once, and use it."""
    ways = {
        DECLARED: by_declaration,
        ONE_BY_ONE: lambda folder: by_hand(folder, at_once=False),
        AT_ONCE: lambda folder: by_hand(folder, at_once=True),
    }
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    try:
        with ways[how](folder) as (first, up, address, token):
            ran = called("lifecycle:tasks", address, token)
            return {"how": how, "first_s": first, "up_s": up, "tasks_s": ran["tasks_s"]}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- all of them ------------------------------------------------------------------------------


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table that the page shows, beside the paper's figures."""
    rows = []
    bare = min(
        ([run["up_s"] for run in runs[how]] for how in (ONE_BY_ONE, AT_ONCE) if how in runs),
        key=lambda found: spread(found).median,
        default=[],
    )
    for how, each in runs.items():
        up = [run["up_s"] for run in each]
        first = spread([run["first_s"] for run in each]).text(0, 1e3) if how == DECLARED else "–"
        times = ratios(up, bare).text(2) + " ×" if bare else "–"
        tasks_s = spread([run["tasks_s"] for run in each]).text(1)
        rows.append([how, first, spread(up).text(1), times, tasks_s, str(len(each))])
    rows.append(["KubeRay, as its paper says", "600", "5", "–", "–", "50"])
    header = ["cluster", "first act, ms", "four nodes, s", "÷ ray start", "100 tasks, s", "runs"]
    return table(header, rows)


def main() -> None:
    options = parser(__doc__ or "", reps=5)
    arguments = options.parse_args()
    todo = [DECLARED, ONE_BY_ONE, AT_ONCE]

    def once(how: str, _turn: int) -> Run:
        return called("lifecycle:child", how)

    def say(run: Run) -> str:
        return f"{run['up_s']:>6.1f} s to four nodes"

    print("\n" + text(measured(SECTION, todo, once, say, arguments)))
