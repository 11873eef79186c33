"""Outbox: a bounded queue of messages to one peer."""

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
        """Whether it takes no more messages."""
        self.overflowed = False
        """Whether it was closed because the peer reads too slowly."""

    @property
    def crowded(self) -> bool:
        """Whether so many messages wait that dispensable ones should be left out."""
        return 2 * len(self._waiting) >= self._limit

    def put(self, message: Message) -> bool:
        """Add a message; return whether it will be sent. An overflow clears and closes the box."""
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
        """Accept no more messages; waiting ones are still sent. May be called twice."""
        self.closed = True
        self._news.set()

    async def send_all(self, context: Any) -> None:
        """Write messages to a gRPC stream until the box is closed and empty."""
        while (message := await self.take()) is not None:
            await context.write(message)

    async def take(self) -> Message | None:
        """Wait for the next message; None after the last."""
        while not self._waiting:
            if self.closed:
                return None
            self._news.clear()
            await self._news.wait()
        return self._waiting.popleft()
