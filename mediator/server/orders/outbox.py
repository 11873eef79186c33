"""Outbox: the messages that wait to be sent to one peer, in order and within a bound."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Generic, TypeVar

Message = TypeVar("Message")


class Outbox(Generic[Message]):
    """Filled from the event loop, emptied by the task that writes to the peer."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Message] = deque()
        self._news = asyncio.Event()
        self.closed = False
        """Whether nothing more can be put in."""
        self.overflowed = False
        """Whether it was closed because the peer reads too slowly."""

    @property
    def crowded(self) -> bool:
        """Whether so much waits that dispensable messages are better left out."""
        return 2 * len(self._waiting) >= self._limit

    def put(self, message: Message) -> bool:
        """Add a message; whether it will be sent. A message too many closes the box."""
        if self.closed:
            return False
        if len(self._waiting) >= self._limit:
            self.overflowed = True
            self._waiting.clear()
            self.close()
            return False
        self._waiting.append(message)
        self._news.set()
        return True

    def close(self) -> None:
        """Take no more messages; those inside are still sent. May be called twice."""
        self.closed = True
        self._news.set()

    async def send_all(self, context: Any) -> None:
        """Write what is put in to a gRPC stream, until the box is closed and empty."""
        while (message := await self.take()) is not None:
            await context.write(message)

    async def take(self) -> Message | None:
        """The next message, when there is one; None after the last."""
        while not self._waiting:
            if self.closed:
                return None
            self._news.clear()
            await self._news.wait()
        return self._waiting.popleft()
