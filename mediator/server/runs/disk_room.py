"""DiskRoom: whether the disk of the mediator's folder has any, and how long a run waits for it."""

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
    """Looks at the disk; the log has a line when it is full, and one when it has room again."""

    def __init__(self, folder: Path, space: Callable[[Path], Space]) -> None:
        self._folder, self._space = folder, space
        self.trouble = ""
        """Why the disk is too full, as it was seen last."""

    def look(self) -> bool:
        """Look; whether something has changed."""
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
        """Look, and have what has changed among the federation's events. OSError."""
        if await asyncio.to_thread(self.look):
            name = "disk_full" if self.trouble else "disk_has_room"
            events.say(name, reason=self.trouble)

    async def wait(self, failures: int, stop: asyncio.Event) -> None:
        """Wait for room, and no shorter the more often in a row there was none; or until `stop`."""
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures, 10))
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stop.wait()
                return
            if not self.trouble:
                return
            pause_s = FIRST_PAUSE_S
