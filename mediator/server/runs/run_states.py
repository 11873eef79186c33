"""RunStates: the stored state of each run, and the legal transitions."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from ...errors import NoSuchRun
from ...wire.messages import RunId, check_run
from ..events import EventLog
from ..store import RunRecord, RunState, StoreError
from ..store.database import Database

log = logging.getLogger(__name__)

GOES_ON = (RunState.SUBMITTED, RunState.QUEUED, RunState.RUNNING, RunState.STOPPING)
ENDED = tuple(state for state in RunState if state not in GOES_ON)
BEFORE: dict[RunState, tuple[RunState, ...]] = {
    RunState.SUBMITTED: (RunState.SUBMITTED,),
    RunState.QUEUED: (RunState.SUBMITTED, RunState.QUEUED, RunState.RUNNING),
    RunState.RUNNING: (RunState.SUBMITTED, RunState.QUEUED, RunState.RUNNING),
    RunState.STOPPING: (RunState.SUBMITTED, RunState.QUEUED, RunState.RUNNING),
    RunState.STOPPED: GOES_ON,
    RunState.FINISHED: GOES_ON,
    RunState.FAILED: GOES_ON,
    RunState.INTERRUPTED: GOES_ON,
}
"""The states that may precede each: a coordinator that starts late does not undo a user's stop."""
NOT_WRITTEN_S = 5.0
"""Seconds between two attempts to write a run's end to a store that answers with errors."""
RESUMABLE = (RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED)


@dataclass(eq=False)
class RunStates:
    """Reads and writes the states of runs, and wakes their followers."""

    _database: Database
    _events: EventLog

    async def record(self, id: str) -> RunRecord:
        """A run's record; NoSuchRun."""
        found = await self._database.ask(self._database.store.run, check_run(id))
        if found is None:
            raise NoSuchRun(
                f"there is no run {id}; `fedpilot runs list` shows those that there are"
            )
        return found

    async def set(self, run: RunId, state: RunState, **facts: Any) -> None:
        """Set a run's state, if its present state may precede that. StoreAway."""
        change = self._database.store.set_run_state
        await self._database.ask(change, run, state, among=BEFORE[state], **facts)
        self._events.wake(run)

    async def note(self, run: RunId, state: RunState, **facts: Any) -> None:
        """Set a run's state, now or as soon as the store is back."""
        change = self._database.store.set_run_state
        await self._database.keep(change, run, state, among=BEFORE[state], **facts)
        self._events.wake(run)

    async def insist(self, run: RunId, state: RunState, **facts: Any) -> None:
        """Set a run's state, retrying until the store accepts it."""
        change = self._database.store.set_run_state
        while True:
            try:
                await self._database.insist(change, run, state, among=BEFORE[state], **facts)
                return
            except StoreError:
                log.exception("that run %s is %s cannot be written; tried again", run, state)
            await asyncio.sleep(NOT_WRITTEN_S)
