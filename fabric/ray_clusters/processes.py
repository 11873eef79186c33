"""The processes of a site that keep its Ray clusters: the lifecycle manager and the autoscaler.

`serve` starts both and starts again what ends, so that neither depends on the other. They end with
it, however it ends: each reads from a pipe that only `serve` holds open. Machines go on. A third
one tells metrics, if it is asked for.

A command that has a Ray cluster of its own has another lifecycle manager, which ends the cluster
when that pipe does.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import importlib
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..core.ray_clusters.autoscaling import autoscale
from ..errors import FabricError, SpecError
from ..ray import private_ray
from .declarations.store import RayClusterStore

MODULE = "fedpilot.fabric.ray_clusters.processes"
MANAGER, AUTOSCALER, METRICS = "lifecycle-manager", "autoscaler", "metrics"
OWN_MANAGER = "own-lifecycle-manager"
KEEPER = "keeper"
"""Starts the first two, and starts again what ends, for a process that has more to do."""
AGAIN_S, LONGEST_S = 0.5, 30.0
"""The wait before a process that has ended starts again: it doubles while it ends soon."""
GRACE_S = 10.0
"""How long a process may take to end."""
log = logging.getLogger(__name__)


def serve(
    store: Path,
    *,
    decides: str = "",
    autoscales: bool = True,
    metrics_file: Path | None = None,
    metrics_at: tuple[str, int] | None = None,
) -> None:
    """Keep all clusters of a store as declared, until SIGINT or SIGTERM.

    `decides` names a function in the place of `autoscale`, as `module:function`. Metrics are in a
    file, at a host and port, in both, or nowhere. SpecError.
    """
    _decision(decides)
    commands = _commands(store, decides, autoscales=autoscales)
    if metrics_file is not None or metrics_at is not None:
        from .metrics.exporter import check_outlets

        check_outlets(metrics_file, metrics_at)
        outlets = [f"--file={metrics_file.absolute()}"] if metrics_file is not None else []
        outlets += ["--host", metrics_at[0], f"--port={metrics_at[1]}"] if metrics_at else []
        commands[METRICS] = [METRICS, str(store), *outlets]
    _log()
    with suppress(asyncio.CancelledError):
        asyncio.run(_until_told(_supervise(commands)))


def _commands(store: Path, decides: str = "", *, autoscales: bool = True) -> dict[str, list[str]]:
    found = {MANAGER: [MANAGER, str(store)]}
    if autoscales:
        found[AUTOSCALER] = [AUTOSCALER, str(store), decides]
    return found


async def _supervise(commands: dict[str, list[str]]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for name, words in commands.items():
            tasks.create_task(_keep_running(name, words))


async def _keep_running(name: str, words: Sequence[str]) -> None:
    """Start a process, and start it again whenever it ends."""
    wait_s = AGAIN_S
    while True:
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", MODULE, *words),
            env={"GRPC_VERBOSITY": "ERROR", **os.environ},
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            await _end(process)
            raise
        wait_s = AGAIN_S if time.monotonic() - began > LONGEST_S else min(2 * wait_s, LONGEST_S)
        log.warning("the %s has ended (%s), and starts again in %g s", name, code, wait_s)
        await asyncio.sleep(wait_s)


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), GRACE_S)
        except TimeoutError:
            process.kill()
            await process.wait()


# -- each of them ----------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Run one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=[MANAGER, AUTOSCALER, METRICS, OWN_MANAGER, KEEPER])
    parser.add_argument("store", type=Path)
    parser.add_argument("decides", nargs="?", default="")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--host", default="")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args(arguments)
    _log()
    try:
        with RayClusterStore(given.store) as store, suppress(asyncio.CancelledError):
            running = {
                MANAGER: lambda: _manager(store),
                AUTOSCALER: lambda: _autoscaler(store, given.decides),
                OWN_MANAGER: lambda: _until_all_are_deleted(store),
                KEEPER: lambda: _supervise(_commands(given.store)),
                METRICS: lambda: _metrics(store, given.file, given.host, given.port),
            }
            asyncio.run(_until_told(running[given.role](), alone=False))
    except FabricError as error:
        log.error("%s", error)
        return 1
    return 0


def _manager(store: RayClusterStore) -> Coroutine[Any, Any, None]:
    private_ray.require(private_ray.DECLARED)
    from ..ray.control_plane.ray_nodes import RayNodes
    from ..spec.ray_cluster.reading import ray_cluster_of
    from .lifecycle.manager import LifecycleManager
    from .providers.choice import provider_of
    from .resources import resource_of

    folder = store.path.parent / "clusters"
    return LifecycleManager(
        store=store,
        declared=lambda stored: ray_cluster_of(stored.document).declared,
        provider=lambda stored, declared: provider_of(declared, stored.uid, folder),
        nodes_at=RayNodes,
        operating=lambda stored, declared: resource_of(stored, declared, folder),
    ).run()


async def _until_all_are_deleted(store: RayClusterStore) -> None:
    """Keep the clusters of a store; once cancelled, delete them all, and the store's folder."""
    keeping = asyncio.ensure_future(_manager(store))
    try:
        with suppress(asyncio.CancelledError):
            await asyncio.wait({keeping})
        by, now = getpass.getuser(), time.time()
        for each in store.declarations():
            store.delete(each.name, saw=each.revision, by=by, at=now)
        with store.watch() as watch:
            while store.declarations() and not keeping.done():
                await watch.wait(1.0)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    if left := [each.name for each in store.declarations()]:
        raise FabricError(f"not ended: {', '.join(left)}")
    shutil.rmtree(store.path.parent, ignore_errors=True)


def _autoscaler(store: RayClusterStore, decides: str) -> Coroutine[Any, Any, None]:
    private_ray.require(private_ray.DECLARED)
    from ..ray.control_plane.ray_nodes import RayNodes
    from .autoscaler.autoscaler import RayClusterAutoscaler

    return RayClusterAutoscaler(store=store, nodes_at=RayNodes, decide=_decision(decides)).run()


def _metrics(
    store: RayClusterStore, file: Path | None, host: str, port: int
) -> Coroutine[Any, Any, None]:
    from .metrics.exporter import RayClusterMetrics

    return RayClusterMetrics(store=store).run(file, (host, port) if host else None)


def _decision(name: str) -> Any:
    """The function of that name, `module:function`. SpecError."""
    if not name:
        return autoscale
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError(f"the autoscaler {name!r} cannot be imported: {error}") from error


async def _until_told(running: Coroutine[Any, Any, None], *, alone: bool = True) -> None:
    """Run until a signal, or the end of the process that holds our stdin open."""
    task = asyncio.ensure_future(running)
    loop = asyncio.get_running_loop()

    def told() -> None:
        if not alone:
            loop.remove_reader(sys.stdin.fileno())
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told)
    if not alone:
        loop.add_reader(sys.stdin.fileno(), told)
    await task


def _log() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
