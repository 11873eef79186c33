"""Real processes for the tests: a Ray that we did not start, and the `fedpilot` command.

Everything that is started here is ended here, by pid.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).resolve().parents[3]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def eventually(
    true: Callable[[], bool], within_s: float, what: str, *, every_s: float = 0.05
) -> None:
    """Poll until something is true; AssertionError naming it when time is up."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(every_s)


LIGHT = (
    *("--disable-usage-stats", "--dashboard-agent-listen-port=0"),
    *("--object-store-memory=104857600", "--min-worker-port=0", "--max-worker-port=0"),
)


@contextlib.contextmanager
def ray_head(
    num_cpus: int = 4,
    port: int | None = None,
    *,
    python: str = sys.executable,
    more: Sequence[str] = ("--include-dashboard=false",),
    **env: str,
) -> Iterator[str]:
    """The address of a Ray head that is not ours; `env` is what its processes see besides."""
    folder = tempfile.mkdtemp(prefix="ray-")
    port = port or free_port()
    options = [
        *("--head", f"--port={port}", f"--num-cpus={num_cpus}", f"--temp-dir={folder}"),
        *("--include-log-monitor=false", "--no-monitor", *more),
    ]
    try:
        with _started(folder, options, env, python) as head:
            eventually(lambda: _listens(port) or head.poll() is not None, 60, "the head listens")
            assert head.poll() is None, (Path(folder) / "ray.log").read_text()
            yield f"127.0.0.1:{port}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def ray_machine(address: str, num_cpus: int = 1, **env: str) -> Iterator[None]:
    """One machine more for a Ray cluster; whoever needs it waits until Ray knows it."""
    folder = tempfile.mkdtemp(prefix="ray-")
    try:
        with _started(folder, [f"--address={address}", f"--num-cpus={num_cpus}"], env):
            yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _started(
    folder: str, options: Sequence[str], env: Mapping[str, str], python: str = sys.executable
) -> Iterator[subprocess.Popen[bytes]]:
    """`ray start` in a session of its own, whose processes end with the block."""
    own = python == sys.executable
    ray = (
        [str(Path(__file__).parent / "light_ray" / "__init__.py")]
        if own
        else ["-m", "ray.scripts.scripts"]
    )
    with open(Path(folder) / "ray.log", "w") as log:
        process = subprocess.Popen(
            [python, *ray, "start", "--block", *LIGHT, *options],
            env={**ENVIRONMENT, **env},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end_session(process.pid)
        process.wait(10)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def session_of(pid: int) -> list[psutil.Process]:
    """The live processes of a session, zombies left out."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and os.getsid(process.pid) == pid:
                found.append(process)
    return found


def end_session(pid: int) -> None:
    """Kill every process of a session."""
    for process in session_of(pid):
        with contextlib.suppress(psutil.Error):
            process.kill()


@dataclass
class Command:
    """A `fedpilot ... --json` process in a session of its own, and the events it has printed."""

    process: subprocess.Popen[str]
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """Of the process and of its session."""
        return self.process.pid

    def wait_for(self, name: str, **fields: Any) -> dict[str, Any]:
        """Read events until one has this name and these fields."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.events.append(event)
            if event["event"] == name and fields.items() <= event.items():
                found: dict[str, Any] = event
                return found
        raise AssertionError(f"it ended without {name} {fields}: {self.error()}")

    def finish(self, timeout_s: float = 120) -> int:
        """Read to the end; the exit code."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
        return self.process.wait(timeout_s)

    def error(self) -> str:
        """What it wrote to stderr."""
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def last(self, name: str) -> dict[str, Any]:
        """The latest event of that name."""
        return [event for event in self.events if event["event"] == name][-1]

    def signal(self, number: signal.Signals, *, whole_group: bool = False) -> None:
        """Send a signal to the process, or as a terminal does to its whole group."""
        (os.killpg if whole_group else os.kill)(self.pid, number)


@contextlib.contextmanager
def in_session(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own; what is left of the session at the end is killed."""
    process = subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, start_new_session=True, **options
    )
    try:
        yield process
    finally:
        end_session(process.pid)
        process.wait(60)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@contextlib.contextmanager
def fedpilot(
    arguments: Sequence[str], folder: Path, *, python: str = sys.executable, **env: str
) -> Iterator[Command]:
    """Run `fedpilot`; what is left of its session at the end is killed."""
    command = [python, "-m", "fedpilot", *arguments]
    environment = {**ENVIRONMENT, **env}
    with in_session(command, cwd=folder, env=environment, stderr=subprocess.PIPE) as process:
        yield Command(process)
