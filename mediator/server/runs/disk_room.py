"""DiskRoom: whether the disk of the mediator's folder has room, and how long a run waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...core.disk import Space, disk_trouble
from ..events import EventLog

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 20.0
"""Before a coordinator that found no room is started again: it may have meant another disk."""


class DiskRoom:
    """Looks at the disk, and logs when it becomes full and when it has room again."""

    def __init__(self, folder: Path, space: Callable[[Path], Space]) -> None:
        self._folder, self._space = folder, space
        self.trouble = ""
        """Why the disk was too full at the last look; empty if it was not."""

    def look(self) -> bool:
        """Look; whether `trouble` has come or gone."""
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
        """Look, and make a change an event of the federation. OSError."""
        if await asyncio.to_thread(self.look):
            name = "disk_full" if self.trouble else "disk_has_room"
            events.say(name, reason=self.trouble)

    async def wait(self, failures: int, stop: asyncio.Event) -> None:
        """Wait for room, or until `stop`; at least a pause that grows with `failures`."""
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures, 10))
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stop.wait()
                return
            if not self.trouble:
                return
            pause_s = FIRST_PAUSE_S
