"""CoordinatorProcess: a run's coordinator as a child process, in a session of its own.

It ends when its stdin closes, and the kernel kills it when the mediator dies. It prints to its log.
`end` sends SIGTERM first, then SIGKILL.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...wire.local_socket import NO_FORK_HANDLERS

FINISHED, FAILED, NO_ROOM, SITES_FULL, STOPPED = 0, 1, 75, 76, 130
"""A coordinator's exit codes. After `NO_ROOM` (a full disk) it restarts once there is room, after
`SITES_FULL` once its run has its turn again.
"""
_WITH_PARENT = """\
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Has Linux kill the child with the thread that starts it, then execs the command. As a function
between fork and exec it could wait for locks of gRPC's threads.
"""


@dataclass(frozen=True)
class CoordinatorProcess:
    """One child, from its start to its end."""

    _process: Process

    @classmethod
    async def start(cls, command: Sequence[str], log: Path) -> CoordinatorProcess:
        """Start a command that is killed when the calling thread ends. OSError."""
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _WITH_PARENT, str(os.getpid()), *command),
                env={**os.environ, **NO_FORK_HANDLERS},
                stdin=asyncio.subprocess.PIPE,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        return cls(process)

    @property
    def pid(self) -> int:
        """The id of the child, and of its session."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the exit code, negative for the signal that killed it."""
        code = await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return code

    async def end(self, within_s: float) -> int:
        """Terminate it, kill it if it does not end in time, and return its exit code."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(within_s):
                return await self.wait()
        except TimeoutError:
            self.kill()
            return await self.wait()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
