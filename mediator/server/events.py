"""EventLog: stores events of runs and of the federation, and serves their followers."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from .store import EventRecord
from .store.database import Database

FEDERATION = ""
"""Used as run id for events of the federation."""
AT_ONCE = 500
"""Events read from the store at once."""
LARGEST_EVENT = 256 << 10
"""Characters of one event."""
LARGEST_NUMBER = (1 << 63) - 1
"""Of an event: integers of a database end there."""


@dataclass(eq=False)
class EventLog:
    """Appends events and wakes their followers."""

    _database: Database
    _clock: Callable[[], float]
    _saying: set[asyncio.Task[None]] = field(default_factory=set)
    _news: dict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))

    async def append(self, run: str, event_json: str) -> None:
        """Store an event, or keep it while the store is away; wake the followers. StoreError."""
        store = self._database.store
        await self._database.accept(store.append_event, run, event_json, now=self._clock())
        self.wake(run)

    def say(self, name: str, /, **fields: Any) -> None:
        """Append an event of the federation, dated now, without waiting."""
        saying = asyncio.get_running_loop().create_task(self._say(name, fields))
        self._saying.add(saying)
        saying.add_done_callback(self._saying.discard)

    async def tell(self, run: str, name: str, /, **fields: Any) -> None:
        """Append an event of a run, dated now. StoreError."""
        moment = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        await self.append(run, json.dumps({"event": name, "time": moment} | fields))

    async def close(self) -> None:
        """Wait until all events are stored or kept; may be called twice."""
        await asyncio.gather(*self._saying, return_exceptions=True)

    async def _say(self, name: str, fields: dict[str, Any]) -> None:
        await self.tell(FEDERATION, name, **fields)

    def wake(self, run: str) -> None:
        """Make the followers of a run read again."""
        news = self._news.pop(run, None)
        if news is not None:
            news.set()

    async def follow(
        self, run: str, after: int, goes_on: Callable[[], bool]
    ) -> AsyncIterator[EventRecord]:
        """Yield the events after a number, until none is left and `goes_on` returns False."""
        after = min(after, LARGEST_NUMBER)
        while True:
            news, more = self._news[run], goes_on()
            store = self._database.store
            found = await self._database.ask(store.events_after, run, after, AT_ONCE)
            for record in found:
                yield record
                after = record.number
            if found:
                continue
            if not more:
                return
            await news.wait()
