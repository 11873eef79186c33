"""Runs: submits, stops, resumes and removes runs.

The store has every run. A mediator continues the runs that its predecessor left in progress.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass

from ...core.rules.roles import Role
from ...errors import BadRequest, RequestRefused
from ...proto import federation_pb2 as pb
from ...wire.messages import RunId, check_run
from ..events import EventLog
from ..settings import ServerSettings
from ..store import RunRecord, RunState
from ..store.database import Database
from .run_folders import RunFolders
from .run_states import ENDED, GOES_ON, RESUMABLE, RunStates
from .supervisor import Supervisor

log = logging.getLogger(__name__)

LARGEST_CONFIG = 1 << 20
"""Characters."""
LARGEST_CODE = 4 << 20
"""Bytes."""
INCOMPLETE = "it has not come whole: submitting it again, under the same id, begins it"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,127}")


@dataclass(eq=False)
class Runs:
    """All runs of a mediator."""

    _settings: ServerSettings
    _clock: Callable[[], float]
    _database: Database
    _events: EventLog
    _states: RunStates
    folders: RunFolders
    supervisor: Supervisor

    async def load(self) -> None:
        """Continue the runs that were in progress when the previous mediator ended."""
        for record in await self._database.ask(self._database.store.runs_in, GOES_ON):
            if record.state is RunState.STOPPING:
                run, now = RunId(record.id), self._clock()
                await self._states.set(run, RunState.STOPPED, reason="it was stopped", ended_at=now)
            elif record.state is RunState.SUBMITTED and not await self._is_whole(record.id):
                # The previous mediator died within `submit`, before its user got an answer.
                log.warning("run %s waits: %s", record.id, INCOMPLETE)
                await self._states.set(RunId(record.id), RunState.SUBMITTED, reason=INCOMPLETE)
            else:
                log.info("run %s goes on", record.id)
                self.supervisor.begin(record, started=record.state is RunState.RUNNING)
        self.supervisor.queue.open(await self._database.ask(self._database.store.last_starts))

    async def submit(self, request: pb.SubmitRequest, owner: str, role: Role) -> RunRecord:
        """Accept a run, once per id, and start its coordinator, or put it in line."""
        run = check_run(request.run)
        self._check(request)
        self.supervisor.queue.check(request.ask_json, request.priority_class, owner, role)
        record = RunRecord(
            id=run,
            name=request.name,
            owner=owner,
            config_yaml=request.config_yaml,
            interactive=request.interactive,
            shared=request.shared,
            priority_class=request.priority_class,
            ask_json=request.ask_json,
            submitted_at=self._clock(),
            folder=str(self.folders.of(run)),
        )
        found = await self._database.ask(self._database.store.add_run, record)
        await asyncio.to_thread(self.folders.write, found, role, request.code)
        if found.state is RunState.SUBMITTED and self.supervisor.going(run) is None:
            self.supervisor.begin(found)
            log.info("run %s was submitted by %s", run, owner)
            self._events.say("run_submitted", run=run, owner=owner, name=request.name)
        return found

    def _check(self, request: pb.SubmitRequest) -> None:
        """Raise BadRequest or RequestRefused for a submission that the mediator does not accept."""
        if not 0 < len(request.config_yaml) <= LARGEST_CONFIG:
            raise BadRequest(
                f"a config has 1 to {LARGEST_CONFIG} characters; found {len(request.config_yaml)}"
            )
        if not _NAME.fullmatch(request.name):
            raise BadRequest(f"{request.name[:80]!r} cannot be the name of a config")
        if request.code and not self._settings.user_code:
            raise RequestRefused(
                "this mediator takes no code that a run brings; have the modules installed where "
                "it runs, and at the sites"
            )
        if len(request.code) > LARGEST_CODE:
            raise BadRequest(
                f"the code of a run has at most {LARGEST_CODE} bytes; found {len(request.code)}"
            )

    async def stop(self, id: str, who: str) -> RunRecord:
        """Stop a run so that it can be resumed."""
        record = await self.record(id)
        run = RunId(record.id)
        going = self.supervisor.going(run)
        if record.state is RunState.STOPPED:
            return record
        if record.state not in GOES_ON:
            raise RequestRefused(f"run {run} is {record.state}: there is nothing to stop")
        if going is None:  # its end could not be written, or the write was not confirmed
            await self._states.set(
                run, RunState.STOPPED, reason=f"stopped by {who}", ended_at=self._clock()
            )
            return await self.record(run)
        if record.state is not RunState.STOPPING:
            await self._states.set(run, RunState.STOPPING, reason=f"stopped by {who}")
        going.stopping.set()
        return await self.record(run)

    async def resume(self, id: str) -> RunRecord:
        """Continue a run that ended unfinished."""
        record = await self.record(id)
        run = RunId(record.id)
        going = self.supervisor.going(run)
        if going is not None and record.state not in GOES_ON:
            await asyncio.wait((going.task,))  # its end is stored already
        elif going is not None and record.state is not RunState.STOPPING:
            return record
        among: tuple[RunState, ...] = RESUMABLE
        if self.supervisor.going(run) is None and await self._is_whole(run):
            among += GOES_ON  # no coordinator works on it: a write was made but not confirmed
        change = self._database.store.set_run_state
        if not await self._database.ask(change, run, RunState.SUBMITTED, among=among):
            raise RequestRefused(f"run {run} is {record.state}: it cannot be resumed")
        self.supervisor.begin(record)
        self._events.say("run_resumed", run=run)
        return await self.record(run)

    async def remove(self, id: str, *, who: str, reason: str) -> None:
        """Remove a run that has ended, with its folder. RequestRefused for one in progress."""
        record = await self.record(id)
        run = RunId(record.id)
        if self.supervisor.going(run) is not None or record.state in GOES_ON:
            raise RequestRefused(
                f"run {run} is {record.state}: it can be removed once it has ended, "
                f"see `fedpilot runs stop {run}`"
            )
        if not await self._database.ask(self._database.store.remove_run, run, ENDED):
            raise RequestRefused(f"run {run} was resumed just now: it is not removed")
        log.info("run %s is removed by %s: %s", run, who, reason)
        self._events.say("run_removed", run=run, who=who, reason=reason)
        await asyncio.to_thread(self.folders.remove, run)

    async def _is_whole(self, run: str) -> bool:
        return await asyncio.to_thread(self.folders.is_whole, run)

    def goes_on(self, run: str) -> bool:
        """Whether a run may still have events and output."""
        return self.supervisor.going(RunId(run)) is not None

    async def record(self, id: str) -> RunRecord:
        """A run's record; NoSuchRun."""
        return await self._states.record(id)
