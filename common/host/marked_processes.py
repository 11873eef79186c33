"""Processes that carry a mark in their environment, which all that they start inherit.

A mark is drawn at random, so no other process has it. A successor of the process that started them
finds them by it.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedProcess:
    """A running process with a mark."""

    pid: int
    began: int
    """Clock ticks from the start of this computer to its own: with the pid, unique until a boot."""
    mark: str
    arguments: tuple[str, ...]

    @property
    def program(self) -> str:
        """The name of its program's file."""
        return os.path.basename(self.arguments[0]) if self.arguments else ""


def marked_processes(
    variable: str, prefix: str, folder: Path = Path("/proc")
) -> list[MarkedProcess]:
    """All running processes whose variable begins so, by pid; those of other users are unseen."""
    begin = os.fsencode(f"{variable}={prefix}")
    found = []
    for each in folder.iterdir():
        if not each.name.isdecimal():
            continue
        # It has just ended, or is another user's. Any other error is one: nothing must seem ended.
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError, IndexError):
            environment = (each / "environ").read_bytes()
            at = environment.find(begin)
            if at < 0 or (at and environment[at - 1]):
                continue
            mark = os.fsdecode(environment[at : environment.find(b"\0", at)].partition(b"=")[2])
            arguments = os.fsdecode((each / "cmdline").read_bytes()).rstrip("\0").split("\0")
            process = MarkedProcess(
                pid=int(each.name), began=_began(each), mark=mark, arguments=tuple(arguments)
            )
            found.append(process)
    return sorted(found, key=lambda process: process.pid)


def _began(process: Path) -> int:
    """When a process began, in clock ticks since the boot."""
    return int((process / "stat").read_text().rpartition(")")[2].split()[19])


def handle(process: MarkedProcess) -> int | None:
    """A descriptor of exactly this process, readable once it has ended; None if it has. OSError."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    with suppress(FileNotFoundError, ProcessLookupError, IndexError):
        if _began(Path(f"/proc/{process.pid}")) == process.began:
            return descriptor
    os.close(descriptor)
    return None


def signal_all(processes: Iterable[MarkedProcess], number: signal.Signals) -> None:
    """Send a signal to exactly these processes; those that have ended are no error."""
    for process in processes:
        descriptor = handle(process)
        if descriptor is not None:
            try:
                with suppress(OSError):
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


def has_ended(descriptor: int) -> bool:
    """Whether the process behind a `handle` has ended."""
    return bool(select.select([descriptor], [], [], 0)[0])
