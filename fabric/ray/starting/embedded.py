"""Starts and ends this process's Ray: quietly, quickly, in its own thread.

A private Ray has no dashboard, autoscaler, log monitor or agents (decision 13). Ray has no switches
for these, so `_short_cuts` replaces functions of the Rays it KNOWS; any other Ray starts in full.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from importlib.metadata import version
from typing import Any

from .. import home, private_ray

NAMESPACE = "fedpilot"
START_S = 300.0
"""How long a private Ray may take to start: minutes on a busy machine."""
INIT_TIMEOUT_S = 60.0
GIVE_UP_S = 2.0
"""How long to wait for a shared Ray that is no longer wanted."""
INIT_POLL_S = 0.05
NODE_TIMEOUT_S = 30.0
NODE_POLL_S = 0.01

KNOWN = ("2.60.",)
"""The versions of Ray on which the short cuts were tested."""
STAND_IN = ("sh", "-c", "exec cat")
"""Replaces an agent, with any arguments: it ends when the raylet's end of stdin closes."""
PRELOAD = "FEDPILOT_PRELOAD"
"""`preload.MODULES`, repeated because importing `preload` starts its work."""
LEFT_OUT = ("start_api_server", "start_log_monitor", "start_monitor")

NICENESS = "RAY_worker_niceness"
"""The niceness of workers relative to their raylet; Ray's 15 starves them on a busy machine."""

QUIET: Mapping[str, str] = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # otherwise Ray prints workers' deaths, which we report
    "RAY_ENABLE_AUTO_CONNECT": "0",  # otherwise a late call would start another Ray
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
QUICK: Mapping[str, str] = {
    "RAY_enable_metrics_collection": "0",
    "RAY_enable_pipe_based_agent_to_parent_health_check": "1",  # gives agents that stdin
    "RAY_enable_worker_prestart": "1",  # processes start with Ray, not with the driver,
    "RAY_prestart_worker_first_driver": "0",  # which does not wait for them either
    # Once a gang holds all CPUs, Ray would end processes that were idle for one second.
    "RAY_idle_worker_killing_time_threshold_ms": "60000",
    # A raylet that starts before its own object store would retry only after a second.
    "RAY_raylet_client_connect_timeout_milliseconds": "20",
    "RAY_raylet_client_num_connect_attempts": "500",
}


def is_known() -> bool:
    """Whether the short cuts apply to the installed Ray."""
    has_stand_in = all(shutil.which(program) for program in ("sh", "cat"))
    return has_stand_in and version("ray").startswith(KNOWN)


def quick_settings(preload: Sequence[str]) -> dict[str, str]:
    """A private Ray's environment, in which its processes import the `preload` modules first."""
    if not is_known():
        return {}
    module = {"RAY_preload_python_modules": "fedpilot.fabric.ray.starting.preload"}
    return {**QUICK, **module, PRELOAD: ",".join(preload)} if preload else dict(QUICK)


def niceness() -> int:
    """The niceness of a private Ray's workers relative to this process: as the user set, or 0."""
    said = os.environ.get(NICENESS, "")
    return int(said) if said.isdecimal() else 0


class TooSlow(Exception):
    """Ray has not started in time."""


class RayThread:
    """Ray in this process, from its start to its end, in its own thread.

    Ray's daemons end with the thread that started them, and an interrupt of the caller must not hit
    a half-started Ray. Ray replaces the handler of SIGTERM, which only the main thread can restore,
    so a private Ray connects only when a caller waits for it.
    """

    def __init__(self, *, private: bool, processes: int = 0, **options: Any) -> None:
        self._private = private
        self._processes = processes
        self._options = options
        self._started: Future[None] = Future()
        self._wanted = threading.Event()
        self._ended = False
        self._over = threading.Event()
        # On import it starts to lock around every fork: not in the middle of our thread's forks.
        importlib.import_module("concurrent.futures.thread")
        self._thread = threading.Thread(target=self._live, name="ray", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait until Ray can be used. Raises TooSlow, or the error of the start."""
        if self._started.done():
            return self._started.result()
        deadline = time.monotonic() + timeout_s
        handler = signal.getsignal(signal.SIGTERM)
        ours = threading.current_thread() is threading.main_thread() and handler is not None
        self._wanted.set()
        while not self._started.done():
            with suppress(TimeoutError):
                self._started.exception(INIT_POLL_S)
            if ours:
                signal.signal(signal.SIGTERM, handler)
            if time.monotonic() > deadline and not self._started.done():
                raise TooSlow
        return self._started.result()

    def end(self) -> None:
        """End Ray, even during its start; a private Ray's daemons end with it."""
        self._ended = True
        self._wanted.set()
        patience_s = INIT_TIMEOUT_S if self._private else GIVE_UP_S
        with suppress(TimeoutError):
            self._started.exception(patience_s)
        importlib.import_module("ray").shutdown()
        self._over.set()
        self._thread.join(INIT_TIMEOUT_S if self._started.done() else GIVE_UP_S)

    def _live(self) -> None:
        try:
            self._init()
        except BaseException as error:
            self._started.set_exception(error)
        else:
            self._started.set_result(None)
        self._over.wait()

    def _init(self) -> None:
        ray = importlib.import_module("ray")
        short_cuts = self._private and is_known()
        # An unknown Ray may warn; the filter also applies to other threads.
        with (
            _daemons_apart(),
            _short_cuts(self._processes, self._until_wanted) if short_cuts else nullcontext(),
            home.unchanged({"PYTHONBREAKPOINT"}),
            nullcontext() if short_cuts else warnings.catch_warnings(action="ignore"),
        ):
            quiet = logging.CRITICAL
            ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=quiet, **self._options)

    def _until_wanted(self) -> None:
        self._wanted.wait()
        if self._ended:
            raise RuntimeError("it was ended before it had started")


@contextmanager
def _daemons_apart() -> Iterator[None]:
    """Put Ray's daemons into their own process group.

    Then a signal to our group (`timeout`, a terminal, a batch system) ends only this process, which
    ends them in order, instead of waiting a minute for a cluster that is gone.
    """
    services: Any = private_ray.starting()[1]
    popen = getattr(services, "ConsolePopen", None)
    if popen is None:  # another Ray, which then ends less gracefully
        yield
        return
    with _replaced(services, "ConsolePopen", functools.partial(popen, process_group=0)):
        yield


@contextmanager
def _short_cuts(processes: int, until_wanted: Callable[[], None]) -> Iterator[None]:
    """Start a head in its lightest form with `processes` workers, and connect when wanted."""
    node, services, worker, _ = private_ray.starting()
    with ExitStack() as undo:
        for name in LEFT_OUT:
            undo.enter_context(_replaced(node.Node, name, lambda *_, **__: None))
        popen = functools.partial(_launch, services.ConsolePopen, processes)
        undo.enter_context(_replaced(services, "ConsolePopen", popen))
        get_node = functools.partial(_get_node, services.get_node)
        undo.enter_context(_replaced(services, "get_node", get_node))
        connect = worker.connect

        def connect_when_wanted(*args: Any, **options: Any) -> Any:
            until_wanted()
            return connect(*args, **options)

        undo.enter_context(_replaced(worker, "connect", connect_when_wanted))
        yield


def _launch(popen: Callable[..., Any], processes: int, command: list[str], **options: Any) -> Any:
    """Start one of Ray's daemons; a raylet gets stand-ins for its agents."""
    flags = dict(
        part[2:].split("=", 1) for part in command if part.startswith("--") and "=" in part
    )
    if "dashboard_agent_command" not in flags:
        return popen(command, **options)
    raylet: Any = private_ray.starting()[3]
    for name in (
        raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME,
        raylet.METRICS_AGENT_PORT_NAME,
        raylet.METRICS_EXPORT_PORT_NAME,
        raylet.RUNTIME_ENV_AGENT_PORT_NAME,
    ):  # where the agents would report their ports
        raylet.persist_port(flags["session_dir"], flags["node_id"], name, 1)
    changed = {
        "dashboard_agent_command": subprocess.list2cmdline(STAND_IN),
        "runtime_env_agent_command": subprocess.list2cmdline(STAND_IN),
        "num_prestart_python_workers": str(processes),
    }
    kept = [
        part for part in command if not part.startswith(tuple(f"--{name}=" for name in changed))
    ]
    return popen([*kept, *(f"--{name}={value}" for name, value in changed.items())], **options)


def _get_node(get_node: Callable[..., Any], gcs_address: str, node_id: str) -> Any:
    """Ask for our node once it exists: Ray retries only after one second, then another."""
    raylet: Any = private_ray.starting()[3]
    client = raylet.GcsClient(address=gcs_address)
    deadline = time.monotonic() + NODE_TIMEOUT_S
    while not client.get_all_node_info(timeout=NODE_TIMEOUT_S) and time.monotonic() < deadline:
        time.sleep(NODE_POLL_S)
    return get_node(gcs_address, node_id)


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
