"""Database: calls the store's methods for an event loop, one after the other in one thread.

While the store is away, reads fail at once with StoreAway. Writes are kept in memory, in order and
within a bound, and made first once the store is back. The log has one line for each change.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, ParamSpec, TypeVar

from . import Store, StoreAway

log = logging.getLogger(__name__)

Params = ParamSpec("Params")
Result = TypeVar("Result")

AGAIN_S = 0.5
"""Seconds between two attempts to reach a store that is away."""
MOST_KEPT = 100_000
"""Writes kept while the store is away; later ones are dropped and counted."""
MOST_KEPT_CHARACTERS = 64 << 20
"""Characters in the texts of these writes."""


class _While(Enum):
    """How to treat a call while the store is away."""

    FAIL = auto()
    KEEP = auto()
    """Within the bound."""
    KEEP_SURELY = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A period in which the store was away."""

    reason: str
    seconds: float
    kept: int
    """Writes that were made afterwards."""
    dropped: int
    """Writes that exceeded the bound."""


@dataclass(slots=True)
class _Job:
    act: Callable[[], Any]
    away: _While
    characters: int
    result: Future[Any] = field(default_factory=Future)
    taken: Future[None] = field(default_factory=Future)
    """Done once the write is made, dropped, or kept until the store is back."""

    def end(self, error: BaseException | None, result: Any = None) -> None:
        if error is None:
            self.result.set_result(result)
        else:
            self.result.set_exception(error)
        self.take()

    def take(self) -> None:
        if not self.taken.done():
            self.taken.set_result(None)


class Database:
    """Runs calls in the order in which they were made, awaited or not."""

    def __init__(self, store: Store, *, again_s: float = AGAIN_S) -> None:
        self.store = store
        self._again_s = again_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._away: tuple[float, StoreAway] | None = None
        """Since when (monotonic clock) and why; only the thread changes it."""
        self._kept: deque[_Job] = deque()
        self._characters = self._made_up_for = self._dropped = 0
        self._timer: threading.Timer | None = None
        self._absences: deque[Absence] = deque()
        self._closed = False

    @property
    def away(self) -> bool:
        """Whether the store is away."""
        return self._away is not None

    def absences(self) -> list[Absence]:
        """The absences that ended since the last call."""
        return [self._absences.popleft() for _ in range(len(self._absences))]

    async def ask(
        self, act: Callable[Params, Result], *args: Params.args, **named: Params.kwargs
    ) -> Result:
        """Call a method of the store and return its result; StoreAway at once while it is away."""
        if self._away is not None:
            raise self._refusal()
        job = self._put(_While.FAIL, partial(act, *args, **named))
        result: Result = await asyncio.wrap_future(job.result)
        return result

    async def insist(
        self, act: Callable[Params, Result], *args: Params.args, **named: Params.kwargs
    ) -> Result:
        """Call once the store is there, even if the caller is cancelled; return the result."""
        job = self._put(_While.KEEP_SURELY, partial(act, *args, **named))
        result: Result = await asyncio.shield(asyncio.wrap_future(job.result))
        return result

    async def keep(
        self, act: Callable[Params, Result], *args: Params.args, **named: Params.kwargs
    ) -> None:
        """Write; return once the write is made, or kept until the store is back."""
        await self._taken(self._put(_While.KEEP_SURELY, partial(act, *args, **named)))

    async def accept(
        self, act: Callable[Params, Result], *args: Params.args, **named: Params.kwargs
    ) -> None:
        """Like `keep`, but drop the write if too much is kept already."""
        job = self._put(_While.KEEP, partial(act, *args, **named), _characters(args))
        await self._taken(job)

    def write(
        self, act: Callable[Params, Result], *args: Params.args, **named: Params.kwargs
    ) -> None:
        """Like `accept`, without waiting; log a failure."""
        job = self._put(_While.KEEP, partial(act, *args, **named), _characters(args))
        job.result.add_done_callback(_log_failure)

    def close(self) -> None:
        """Finish all calls, then close the store; may be called twice.

        A store that is away is tried once more; the log counts the writes that are then lost.
        """
        if not self._closed:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
            if self._away is not None:
                self._thread.submit(self._try)
        self._thread.shutdown(wait=True)
        if self._kept:
            log.error(
                "%d writes are lost: the mediator ends, its database is away", len(self._kept)
            )
        for job in self._kept:
            job.take()
            job.result.cancel()
        self._kept.clear()
        self.store.close()

    # -- putting in -------------------------------------------------------------------------------

    def _put(self, away: _While, act: Callable[[], Any], characters: int = 0) -> _Job:
        job = _Job(act, away, characters)
        self._thread.submit(self._do, job)
        return job

    async def _taken(self, job: _Job) -> None:
        await asyncio.shield(asyncio.wrap_future(job.taken))
        if job.result.done() and not job.result.cancelled():
            job.result.result()

    def _refusal(self) -> StoreAway:
        since, error = self._away or (time.monotonic(), StoreAway(""))
        return StoreAway(
            f"its database has been away for {time.monotonic() - since:.0f} s, since {error.why}; "
            "what runs goes on",
            error.why,
        )

    # -- in the thread ----------------------------------------------------------------------------

    def _do(self, job: _Job) -> None:
        if job.away is _While.FAIL and not job.result.set_running_or_notify_cancel():
            return  # its caller was cancelled
        if self._away is None and self._done(job):
            return
        if job.away is _While.FAIL:
            job.end(self._refusal())
        elif job.away is _While.KEEP and (
            len(self._kept) >= MOST_KEPT or self._characters + job.characters > MOST_KEPT_CHARACTERS
        ):
            self._dropped += 1
            job.end(None)
        else:
            self._kept.append(job)
            self._characters += job.characters
            job.take()

    def _done(self, job: _Job) -> bool:
        """Run a job; return whether the store was there."""
        try:
            result = job.act()
        except StoreAway as error:
            self._gone(error)
            return False
        except BaseException as error:
            job.end(error)
        else:
            job.end(None, result)
        return True

    def _gone(self, error: StoreAway) -> None:
        if self._away is None:
            self._away = time.monotonic(), error
            self._made_up_for = self._dropped = 0
            log.error("the database is away; what is to be written waits for it: %s", error)
        if not self._closed:
            self._timer = threading.Timer(self._again_s, self._try_soon)
            self._timer.daemon = True
            self._timer.start()

    def _try_soon(self) -> None:
        with suppress(RuntimeError):  # closed meanwhile
            self._thread.submit(self._try)

    def _try(self) -> None:
        """Make the kept writes; after the last one, the store is back."""
        while self._kept:
            job = self._kept[0]
            if not self._done(job):
                return
            self._kept.popleft()
            self._characters -= job.characters
            self._made_up_for += 1
        try:
            self.store.check()
        except StoreAway as error:
            self._gone(error)
            return
        except Exception as error:
            log.error("the database is there, and takes nothing: %s", error)
        self._back()

    def _back(self) -> None:
        if self._away is None:
            return
        (since, error), self._away = self._away, None
        absence = Absence(
            reason=str(error),
            seconds=time.monotonic() - since,
            kept=self._made_up_for,
            dropped=self._dropped,
        )
        self._absences.append(absence)
        log.warning(
            "the database is back after %.1f s; %d writes were made up for, %d are lost",
            absence.seconds,
            absence.kept,
            absence.dropped,
        )


def _characters(args: tuple[Any, ...]) -> int:
    return sum(len(each) for each in args if isinstance(each, str))


def _log_failure(done: Future[Any]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        log.error("the store has not written something: %s", error)
