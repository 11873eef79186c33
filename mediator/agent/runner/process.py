"""RunnerProcess: a runner as a process, which outlives its starter and can be found again.

A runner's folder holds its settings, socket, log and lock. The lock is held from before the process
starts until it has ended, so a folder with a free lock has no runner.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pydantic import ConfigDict, TypeAdapter, with_config

from ...wire.local_socket import NO_FORK_HANDLERS, RUNNER_SOCKET
from .errors import BadSettings, RunnerExists

log = logging.getLogger(__name__)

PROTOCOL = 2
"""Incremented when older runners or drivers become incompatible; 1 had its own frames."""
SETTINGS, LOG, LOCK = "runner.json", "runner.log", "runner.pid"
LOG_LINES, LOG_BYTES = 8, 16 << 10
"""The most that is quoted from a log."""
POLL_S = 0.02
END_S = 5.0
"""How long a killed process may take to be gone."""
SYSTEM = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/vmstat")
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
STANDING = ("site", "ray", "blobs", "folder", "data", "asks_policy", "policy")
"""The settings that the site's admin decides; changing them needs a new runner."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True, kw_only=True)
class RayChoice:
    """Which Ray a runner uses: a running one, or a private one that it starts and ends."""

    address: str | None = None
    """`host:port` or `auto`; None for a private one."""
    auth_mode: str | None = None
    num_cpus: int | None = None
    num_gpus: int | None = None
    object_store_bytes: int | None = None
    processes: int = 0
    """Worker processes that a private Ray starts at once,"""
    preload: tuple[str, ...] = ()
    """and the modules that they import meanwhile."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """A runner's settings, which it reads when it starts."""

    run: str
    site: str
    ray: RayChoice = field(default_factory=RayChoice)
    blobs: Path
    """Folder of the tensors of orders and answers."""
    blob_limit_bytes: int = 1 << 40
    transient: bool = False
    """Whether answers' blobs are removed once taken, not only when room is needed."""
    lease_s: float = 0.0
    """How long it lives without a renewal before a first connection; 0 for no such limit."""
    orphan_s: float = 60.0
    """How long it lives without a connected driver."""
    folder: Path | None = None
    """For workload files that survive the process; None if orders name the folder."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The data sets that the site's admin declared: JSON values by name."""
    asks_policy: bool = True
    """Whether the site's policy is checked for what a run wants and gets."""
    policy: Path | None = None
    """The file of that policy; None for the default."""
    workload: str = ""
    """A workload to import in advance."""
    protocol: int = PROTOCOL

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = _JSON.dump_python(self, mode="json")
        return values

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> RunnerSettings:
        """The inverse of `to_json`; ValueError for anything else."""
        return _JSON.validate_python({"protocol": 1, **values})  # protocol 1 had no such field

    @classmethod
    def read(cls, folder: Path) -> RunnerSettings:
        """Read the settings of the runner in a folder; BadSettings if that fails."""
        path = folder / SETTINGS
        try:
            return cls.from_json(json.loads(path.read_text()))
        except OSError as error:
            raise BadSettings(str(path), error.strerror or type(error).__name__) from error
        except (ValueError, TypeError) as error:
            raise BadSettings(str(path), f"{error!r:.200}") from error

    def write(self, folder: Path) -> None:
        """Replace a folder's settings atomically, not durably: no runner survives a power cut."""
        aside = folder / f".{SETTINGS}"
        aside.write_text(json.dumps(self.to_json()))
        aside.replace(folder / SETTINGS)

    def changed(self, now: RunnerSettings) -> tuple[str, ...]:
        """Names of the settings that a site's admin has changed since.

        Of Ray's address it compares only the presence: the watchdog follows changes.
        """
        before, after = _standing(self), _standing(now)
        return tuple(name for name in STANDING if before[name] != after[name])


_JSON = TypeAdapter(RunnerSettings)


def _standing(settings: RunnerSettings) -> dict[str, Any]:
    values = settings.to_json()
    values["ray"]["address"] = settings.ray.address is not None
    return values


class RunnerProcess:
    """A runner's process, started here or found."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        self.folder = folder
        self.settings = RunnerSettings.read(folder)
        self._process = process
        self._oom_kills = oom_kills()

    @classmethod
    def start(
        cls,
        folder: Path,
        settings: RunnerSettings,
        *,
        own_session: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Start a runner and return at once; RunnerExists if the folder has one.

        In its own session it outlives this terminal or batch job. `environment` is added to ours.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.truncate(lock, 0)
            (folder / RUNNER_SOCKET).unlink(missing_ok=True)
            settings.write(folder)
            with (folder / LOG).open("wb") as log:
                process = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "fedpilot.mediator.agent.runner",
                        str(folder),
                        str(lock),
                    ],
                    env={**os.environ, **NO_FORK_HANDLERS, **(environment or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[lock],
                    start_new_session=own_session,
                    process_group=None if own_session else 0,
                )
        except BlockingIOError:
            raise RunnerExists(str(folder)) from None
        finally:
            os.close(lock)
        return cls(folder, process)

    @classmethod
    def find(cls, folder: Path) -> Self | None:
        """The living runner of a folder, or None; kills one whose settings cannot be read."""
        if not _is_held(folder):
            return None
        try:
            return cls(folder)
        except BadSettings as error:
            log.warning("the runner of %s is ended, since it cannot be driven: %s", folder, error)
        if (pid := _pid_in(folder)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + END_S
            while _is_held(folder) and time.monotonic() < deadline:
                time.sleep(POLL_S)
        return None

    @property
    def pid(self) -> int | None:
        """The process id; None once it has ended, or before it has written it."""
        if self._process is not None and self._process.poll() is None:
            return self._process.pid
        return _pid_in(self.folder) if self.alive() else None

    def alive(self) -> bool:
        if self._process is not None and self._process.poll() is None:
            return True  # its lock is free a moment before it can be reaped
        return _is_held(self.folder)

    @property
    def exit_code(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None if it runs or was found."""
        return None if self._process is None else self._process.poll()

    def how_it_ended(self) -> str:
        """How it ended, as the predicate of a sentence."""
        return how_it_ended(self.exit_code, out_of_memory=oom_kills() > self._oom_kills)

    def last_words(self) -> str:
        """The end of its log, on one line."""
        with suppress(OSError):
            with (self.folder / LOG).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
                text = file.read(LOG_BYTES).decode(errors="replace")
            return " | ".join(line.strip() for line in text.splitlines()[-LOG_LINES:] if line)
        return ""

    def quoted(self) -> str:
        """`last_words` to end a sentence; empty without any, or if they must stay at the site.

        The log of a site with its own data or policy may name them, so it never leaves.
        """
        settings = self.settings
        if settings.asks_policy and (settings.data or settings.policy is not None):
            return ""
        words = self.last_words()
        return f"; the last of {self.folder / LOG}: {words}" if words else ""

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it; a private Ray ends with it."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if (pid := self.pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; return whether it came."""
        deadline = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True

    def end(self, within_s: float) -> None:
        """Terminate it, and kill it after `within_s`."""
        self.terminate()
        if not self.wait(within_s):
            self.kill()
            self.wait(END_S)


def _is_held(folder: Path) -> bool:
    try:
        lock = os.open(folder / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _pid_in(folder: Path) -> int | None:
    with suppress(OSError, ValueError):
        pid = int((folder / LOCK).read_text())
        return pid if pid > 1 else None  # others address process groups, or all processes
    return None


# -- how it ended -----------------------------------------------------------------------------


def oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory, in our cgroup if known.

    The count is a total, so it is read at a process's start and at its end.
    """
    root, own, whole = SYSTEM
    for path in (*_of_group(root, own), whole):
        with suppress(OSError):
            if found := _COUNT.search(path.read_text()):
                return int(found[1])
    return 0


def _of_group(root: Path, own: Path) -> Iterable[Path]:
    """The files with the count of our control group, in cgroup version 2 and 1."""
    with suppress(OSError, ValueError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield root / path.lstrip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                yield root / "memory" / path.lstrip("/") / "memory.oom_control"


def how_it_ended(code: int | None, *, out_of_memory: bool = False) -> str:
    """How a process ended, as in `was killed by SIGKILL`; `code` is None if unknown."""
    if code is None:
        return "ended without a word"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if out_of_memory and -code == signal.SIGKILL:
        return f"was killed by {name}: the machine was out of memory"
    return f"was killed by {name}"
