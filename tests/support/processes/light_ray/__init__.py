"""A Ray for tests without the processes that none of them asks: dashboard, its agents, log monitor.

GCS, raylets, the agents of runtime environments and workers are Ray's own. It imports no fedpilot,
which some tests hide from the Ray that they start. As a script it is `ray start`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

LEFT_OUT = (
    "start_api_server",
    "start_log_monitor",
    "start_monitor",
    "start_ray_client_server",
)
SETTINGS = {
    "RAY_enable_metrics_collection": "0",  # an agent of the dashboard would collect them
    "RAY_enable_pipe_based_agent_to_parent_health_check": "1",  # so that a stand-in ends
    "RAY_prestart_worker_first_driver": "0",  # a process for each CPU
}
STAND_IN = subprocess.list2cmdline(["sh", "-c", "exec cat"])
"""Replaces an agent: it ends when the raylet does."""
SETUP_WORKER = str(Path(__file__).with_name("setup_worker.py"))


@contextlib.contextmanager
def light_ray(*, dashboard: bool = False) -> Iterator[None]:
    """What Ray starts meanwhile is light; a dashboard keeps its agents and all that it needs."""
    node, services = (importlib.import_module(f"ray._private.{n}") for n in ("node", "services"))
    theirs = str(Path(node.__file__ or "").parent / "workers" / "setup_worker.py")
    with contextlib.ExitStack() as undo:
        variables = {**SETTINGS, "TESTS_SETUP_WORKER": theirs}
        undo.enter_context(mock.patch.dict(os.environ, variables))
        popen = functools.partial(_launch, services.ConsolePopen, theirs, dashboard)
        undo.enter_context(mock.patch.object(services, "ConsolePopen", popen))
        for name in () if dashboard else LEFT_OUT:
            undo.enter_context(mock.patch.object(node.Node, name, return_value=None))
        yield


def _launch(
    popen: Callable[..., Any], theirs: str, dashboard: bool, command: list[str], **options: Any
) -> Any:
    """Start one of Ray's processes; a raylet gets the lighter commands."""
    agent = "--dashboard_agent_command="
    if not any(part.startswith(agent) for part in command):
        return popen(command, **options)
    command = [part.replace(theirs, SETUP_WORKER) for part in command]
    if not dashboard:
        _persist_ports(command)
        command = [agent + STAND_IN if part.startswith(agent) else part for part in command]
    return popen(command, **options)


def _persist_ports(command: list[str]) -> None:
    """Write the ports that the agent would report."""
    raylet: Any = importlib.import_module("ray._raylet")
    flags = dict(part[2:].split("=", 1) for part in command if "=" in part)
    for name in (
        raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME,
        raylet.METRICS_AGENT_PORT_NAME,
        raylet.METRICS_EXPORT_PORT_NAME,
    ):
        raylet.persist_port(flags["session_dir"], flags["node_id"], name, 1)


if __name__ == "__main__":
    from ray.scripts.scripts import main

    with light_ray(dashboard="--include-dashboard=false" not in sys.argv and "--head" in sys.argv):
        main()
