"""DiskRoom: whether the mediator's disk has room, and how long a run waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...core.storage.disk import Space, disk_trouble
from ..events import EventLog

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 20.0
"""Pauses before a coordinator that found no room restarts: it may have meant another disk."""


class DiskRoom:
    """Checks the disk; logs when it becomes full and when it has room again."""

    def __init__(self, folder: Path, space: Callable[[Path], Space]) -> None:
        self._folder, self._space = folder, space
        self.trouble = ""
        """Why the disk was too full at the last check; empty if it was not."""

    def look(self) -> bool:
        """Check the disk; return whether `trouble` has begun or ended."""
        before = self.trouble
        self.trouble = disk_trouble(
            self._space(self._folder), "the mediator", before=bool(self.trouble)
        )
        if bool(before) is bool(self.trouble):
            return False
        if self.trouble:
            log.error("%s; runs that need room wait for it", self.trouble)
        else:
            log.warning("the disk of the mediator has room again")
        return True

    async def look_and_say(self, events: EventLog) -> None:
        """Check the disk, and append an event for a change. OSError."""
        if await asyncio.to_thread(self.look):
            name = "disk_full" if self.trouble else "disk_has_room"
            events.say(name, reason=self.trouble)

    async def wait(self, failures: int, stop: asyncio.Event) -> None:
        """Wait for room, at least for a pause that grows with `failures`, or until `stop`."""
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures, 10))
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stop.wait()
                return
            if not self.trouble:
                return
            pause_s = FIRST_PAUSE_S
