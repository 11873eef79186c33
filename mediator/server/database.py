"""Database: the store's methods for an event loop, one after the other in a thread of their own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from ..store import Store

log = logging.getLogger(__name__)

Params = ParamSpec("Params")
Result = TypeVar("Result")


class Database:
    """What is asked first is done first, whether its answer is waited for or not."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")

    async def ask(
        self, act: Callable[Params, Result], *args: Params.args, **named: Params.kwargs
    ) -> Result:
        """What a method of the store gives, or raises."""
        asked = partial(act, *args, **named)
        return await asyncio.get_running_loop().run_in_executor(self._thread, asked)

    def write(
        self, act: Callable[Params, Result], *args: Params.args, **named: Params.kwargs
    ) -> None:
        """Have something written that nobody waits for; what goes wrong is logged."""
        self._thread.submit(partial(act, *args, **named)).add_done_callback(_log_failure)

    def close(self) -> None:
        """Wait for what was asked, then close the store; may be called twice."""
        self._thread.shutdown(wait=True)
        self.store.close()


def _log_failure(done: Future[Result]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        log.error("the store has not written something: %s", error)
