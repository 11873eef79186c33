"""CoordinatorProcess: a run's coordinator as a child of ours, in a session of its own.

It ends when its stdin does, and is killed with us. What it prints goes to its log. Ending it is
asked for first (SIGTERM), then done.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...wire.local_socket import NO_FORK_HANDLERS
from .parent_death import fated

FINISHED, FAILED, NO_ROOM, STOPPED = 0, 1, 75, 130
"""The exit codes by which a coordinator says itself how it ended. One that found the disk full says
`NO_ROOM`: it is started again once that has room."""


class CoordinatorProcess:
    """One child, from its start to its end."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str], log: Path) -> CoordinatorProcess:
        """Start a command; OSError if that cannot be done."""
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                *fated(command),
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
        """Of the child, and of its session."""
        return self._process.pid

    async def wait(self) -> int:
        """Its exit code, negative for the signal that killed it."""
        code = await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return code

    async def end(self, within_s: float) -> int:
        """Ask it to end, kill it if it does not; its exit code."""
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
