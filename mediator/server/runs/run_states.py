"""RunStates: the state of each run, as the store keeps it, and which state may follow which."""

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

GOES_ON = (RunState.SUBMITTED, RunState.RUNNING, RunState.STOPPING)
ENDED = tuple(state for state in RunState if state not in GOES_ON)
BEFORE: dict[RunState, tuple[RunState, ...]] = {
    RunState.SUBMITTED: (RunState.SUBMITTED,),
    RunState.RUNNING: (RunState.SUBMITTED, RunState.RUNNING),
    RunState.STOPPING: (RunState.SUBMITTED, RunState.RUNNING),
    RunState.STOPPED: GOES_ON,
    RunState.FINISHED: GOES_ON,
    RunState.FAILED: GOES_ON,
    RunState.INTERRUPTED: GOES_ON,
}
"""The states that may precede each state of a run that goes on: a coordinator that starts meanwhile
does not undo a user's stop."""
NOT_WRITTEN_S = 5.0
"""Seconds between two attempts to write how a run ended, to a store that answers."""
RESUMABLE = (RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED)


@dataclass(eq=False)
class RunStates:
    """Reads and writes the states of a mediator's runs, and wakes the followers of a run."""

    _database: Database
    _events: EventLog

    async def record(self, id: str) -> RunRecord:
        """What is known of a run; NoSuchRun."""
        found = await self._database.ask(self._database.store.run, check_run(id))
        if found is None:
            raise NoSuchRun(
                f"there is no run {id}; `fedpilot runs list` shows those that there are"
            )
        return found

    async def set(self, run: RunId, state: RunState, **facts: Any) -> None:
        """Bring a run into a state, if its own may precede that. StoreAway."""
        change = self._database.store.set_run_state
        await self._database.ask(change, run, state, among=BEFORE[state], **facts)
        self._events.wake(run)

    async def note(self, run: RunId, state: RunState, **facts: Any) -> None:
        """Bring a run into a state, now or as soon as the store is back."""
        change = self._database.store.set_run_state
        await self._database.keep(change, run, state, among=BEFORE[state], **facts)
        self._events.wake(run)

    async def insist(self, run: RunId, state: RunState, **facts: Any) -> None:
        """Bring a run into a state, and try again until the store takes that."""
        change = self._database.store.set_run_state
        while True:
            try:
                await self._database.insist(change, run, state, among=BEFORE[state], **facts)
                return
            except StoreError:
                log.exception("that run %s is %s cannot be written; tried again", run, state)
            await asyncio.sleep(NOT_WRITTEN_S)
