"""Runs: what was submitted, and a coordinator process for each that goes on.

A coordinator says by its exit code how it ended. One that was killed is started again, within a
budget; one that ended by itself is not. The store knows every run; those that were going on when
the mediator died are started again by its successor.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...coordinator.process import NO_USER_CODE
from ...core.restarts import pause_before_restart
from ...core.rules.roles import Role
from ...errors import BadRequest, NoSuchRun, RequestRefused, RunExists
from ...proto import federation_pb2 as pb
from ...wire.blobs.full_disk import is_full
from ...wire.messages import RunId, check_run
from ..events import EventLog
from ..orders.coordinator_registry import Switchboard
from ..orders.sites import Sites
from ..settings import ServerSettings
from ..store import RunRecord, RunState, StoreError
from ..store.database import Database
from .coordinator_process import FINISHED, NO_ROOM, STOPPED, CoordinatorProcess
from .disk_room import LONGEST_PAUSE_S, Room

log = logging.getLogger(__name__)

LOG = "coordinator.log"
CONFIG = "config.yaml"
SUBMISSION = "submission.json"
CODE = "code.zip"
LARGEST_CONFIG = 1 << 20
"""Characters."""
LARGEST_CODE = 4 << 20
"""Bytes."""
REMOVED = ".removed-"
"""Begins the names of folders whose runs were removed."""
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
"""The states that a run comes into another one from, while it goes on. What somebody has wished is
not taken back by a coordinator that has started meanwhile."""
INCOMPLETE = "it has not come whole: submitting it again, under the same id, begins it"
RESUMABLE = (RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED)
NOT_WRITTEN_S = 5.0
"""Between two attempts to write how a run ended, of a store that is there."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,127}")


@dataclass(slots=True)
class _Going:
    """A run that has a coordinator, or will have one again in a moment."""

    task: asyncio.Task[None]
    started: bool
    """Whether it is known that it has begun."""
    owner: str
    shared: bool
    process: CoordinatorProcess | None = None
    deaths: list[float] = field(default_factory=list)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    user: dict[str, Any] = field(default_factory=dict)
    """Whose run it is: what sites' policies ask for."""
    told: dict[str, Any] = field(default_factory=dict)
    """The fields of the last `run_finished` that the coordinator told of."""


class Runs:
    """All runs of a mediator."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        clock: Callable[[], float],
        database: Database,
        events: EventLog,
        switchboard: Switchboard,
        sites: Sites,
        room: Room,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._database = database
        self._store = database.store
        self._events = events
        self._switchboard = switchboard
        self._sites = sites
        self._room = room
        self._going: dict[RunId, _Going] = {}
        self._ending = False

    async def load(self) -> None:
        """Go on with what was going on when the mediator before us ended."""
        for record in await self._database.ask(self._store.runs_in, GOES_ON):
            if record.state is RunState.STOPPING:
                run, now = RunId(record.id), self._clock()
                await self._set(run, RunState.STOPPED, reason="it was stopped", ended_at=now)
            elif record.state is RunState.SUBMITTED and not await self._is_whole(record.id):
                # The one before us died over `submit`, and has told nobody that it was done.
                log.warning("run %s waits: %s", record.id, INCOMPLETE)
                await self._set(RunId(record.id), RunState.SUBMITTED, reason=INCOMPLETE)
            else:
                log.info("run %s goes on", record.id)
                self._begin(record, started=record.state is RunState.RUNNING)

    # -- what users ask ---------------------------------------------------------------------------

    async def submit(self, request: pb.SubmitRequest, owner: str, role: Role) -> RunRecord:
        """Take a run, once for its id, and start its coordinator."""
        run = check_run(request.run)
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
        folder = self.folder(run)
        record = RunRecord(
            id=run,
            name=request.name,
            owner=owner,
            config_yaml=request.config_yaml,
            interactive=request.interactive,
            shared=request.shared,
            submitted_at=self._clock(),
            folder=str(folder),
        )
        found = await self._database.ask(self._store.add_run, record)
        await asyncio.to_thread(self._write_folder, found, role, request.code)
        if found.state is RunState.SUBMITTED and run not in self._going:
            self._begin(found)
            log.info("run %s was submitted by %s", run, owner)
            self._events.say("run_submitted", run=run, owner=owner, name=request.name)
        return found

    async def stop(self, id: str, who: str) -> RunRecord:
        """Have a run end so that it can be resumed."""
        record = await self.record(id)
        run = RunId(record.id)
        going = self._going.get(run)
        if record.state is RunState.STOPPED:
            return record
        if record.state not in GOES_ON:
            raise RequestRefused(f"run {run} is {record.state}: there is nothing to stop")
        if going is None:  # what was written of it last was not what its end was told as
            await self._set(
                run, RunState.STOPPED, reason=f"stopped by {who}", ended_at=self._clock()
            )
            return await self.record(run)
        if record.state is not RunState.STOPPING:
            await self._set(run, RunState.STOPPING, reason=f"stopped by {who}")
        going.stopping.set()
        return await self.record(run)

    async def resume(self, id: str) -> RunRecord:
        """Go on with a run that ended without being finished."""
        record = await self.record(id)
        run = RunId(record.id)
        going = self._going.get(run)
        if going is not None and record.state not in GOES_ON:
            await asyncio.wait((going.task,))  # its end is written, and it is about to be let go
        elif going is not None and record.state is not RunState.STOPPING:
            return record
        among: tuple[RunState, ...] = RESUMABLE
        if run not in self._going and await self._is_whole(run):
            among += GOES_ON  # nobody works on it: it was written, and that could not be told
        changed = await self._database.ask(
            self._store.set_run_state, run, RunState.SUBMITTED, among=among
        )
        if not changed:
            raise RequestRefused(f"run {run} is {record.state}: it cannot be resumed")
        self._begin(record)
        self._events.say("run_resumed", run=run)
        return await self.record(run)

    async def remove(self, id: str, *, who: str, reason: str) -> None:
        """Forget a run that has ended, with its folder. RequestRefused for one that goes on."""
        record = await self.record(id)
        run = RunId(record.id)
        if run in self._going or record.state in GOES_ON:
            raise RequestRefused(
                f"run {run} is {record.state}: it can be removed once it has ended, "
                f"see `fedpilot runs stop {run}`"
            )
        if not await self._database.ask(self._store.remove_run, run, ENDED):
            raise RequestRefused(f"run {run} was resumed just now: it is not removed")
        log.info("run %s is removed by %s: %s", run, who, reason)
        self._events.say("run_removed", run=run, who=who, reason=reason)
        await asyncio.to_thread(self._remove_folder, run)

    def _remove_folder(self, run: RunId) -> None:
        """Take a run's folder out of sight, then remove it: what a kill leaves is swept later."""
        aside = self._settings.runs / f"{REMOVED}{run}.{secrets.token_hex(4)}"
        with suppress(FileNotFoundError):
            self.folder(run).rename(aside)
            shutil.rmtree(aside)

    def sweep(self) -> None:
        """Remove the folders of runs whose removal was cut short. OSError."""
        for path in self._settings.runs.glob(f"{REMOVED}*"):
            shutil.rmtree(path)

    async def record(self, id: str) -> RunRecord:
        """What is known of a run; NoSuchRun."""
        found = await self._database.ask(self._store.run, check_run(id))
        if found is None:
            raise NoSuchRun(
                f"there is no run {id}; `fedpilot runs list` shows those that there are"
            )
        return found

    def user(self, run: RunId) -> dict[str, Any]:
        """The name and the role of whom a run that goes on belongs to."""
        going = self._going.get(run)
        return {} if going is None else going.user

    def goes_on(self, run: str) -> bool:
        """Whether more may be heard of a run."""
        return RunId(run) in self._going

    def folder(self, run: str) -> Path:
        """Where a run keeps its files."""
        return self._settings.runs / check_run(run)

    # -- what coordinators say --------------------------------------------------------------------

    async def said(self, run: RunId, event_json: str) -> None:
        """Keep an event of a run, and note how it says that it ended."""
        try:
            event = json.loads(event_json)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict) or "\x00" in event_json:
            log.error("run %s: its coordinator told something that is no event", run)
            return
        going = self._going.get(run)
        if going is not None and event.get("event") == "run_finished":
            going.told = event
        try:
            await self._events.append(run, event_json)
        except StoreError as error:  # of this event alone: the conversation is about all else
            log.error("run %s: an event is not kept: %s", run, error)

    # -- a coordinator's life ---------------------------------------------------------------------

    def _begin(self, record: RunRecord, *, started: bool = False) -> None:
        run = RunId(record.id)
        self._switchboard.begin(run)
        task = asyncio.get_running_loop().create_task(self._supervise(run))
        self._going[run] = _Going(task, started, record.owner, record.shared)

    async def _supervise(self, run: RunId) -> None:
        """Have a run worked on until it ends; it is not forgotten before that is written."""
        going = self._going[run]
        try:
            try:
                state, reason = await self._watch(run, going)
            except Exception as error:
                log.exception("run %s cannot be watched", run)
                state, reason = RunState.FAILED, str(error) or type(error).__name__
            if self._ending:
                return
            digest = str(going.told.get("digest", "")) if state is RunState.FINISHED else ""
            facts = {"reason": reason, "ended_at": self._clock(), "digest": digest}
            while not await self._written(run, state, facts):
                await asyncio.sleep(NOT_WRITTEN_S)
            log.info("run %s is %s%s", run, state, f": {reason}" if reason else "")
            whose = {"owner": going.owner, "shared": going.shared}
            self._events.say(f"run_{state}", run=run, **whose, reason=reason, digest=digest)
        finally:
            del self._going[run]
            self._switchboard.end(run)
            if not self._ending:
                self._sites.orders.run_over(run)
            self._events.wake(run)

    async def _watch(self, run: RunId, going: _Going) -> tuple[RunState, str]:
        """Start coordinators until one says how the run ended; that, and why."""
        no_room = 0
        while True:
            began_at = self._clock()
            code = await self._one(run, going)
            if self._ending:
                return RunState.INTERRUPTED, ""
            if code == NO_ROOM and not going.stopping.is_set():
                no_room = 0 if self._clock() - began_at > LONGEST_PAUSE_S else no_room
                await self._wait_for_room(run, going, no_room)
                no_room += 1
                continue
            if code == FINISHED:
                return RunState.FINISHED, str(going.told.get("reason") or "")
            if going.stopping.is_set():
                return RunState.STOPPED, "it was stopped"
            if code > 0 and code != STOPPED:
                return RunState.FAILED, self._why_failed(run, going, code)
            going.deaths.append(self._clock())
            pause = pause_before_restart(going.deaths, self._clock(), self._settings.restarts)
            if pause is None:
                return RunState.FAILED, (
                    f"its coordinator was killed {len(going.deaths)} times; at last it "
                    f"{_told_end(code)}"
                )
            log.warning(
                "the coordinator of run %s %s; the next in %g s", run, _told_end(code), pause
            )
            self._events.say("coordinator_killed", run=run, exit_code=code, pause_s=pause)
            try:
                async with asyncio.timeout(pause):
                    await going.stopping.wait()
                return RunState.STOPPED, "it was stopped"
            except TimeoutError:
                await self._note(run, RunState.RUNNING, restarted=True)

    async def _wait_for_room(self, run: RunId, going: _Going, failures: int) -> None:
        """Have a run wait until the disk has room again, and say so."""
        await self._room.look_and_say(self._events)
        reason = self._room.trouble or "a disk of the mediator is full"
        if not failures:
            log.warning("run %s waits: %s", run, reason)
            self._events.say("run_waiting", run=run, reason=reason)
        await self._note(run, RunState.RUNNING, reason=f"it waits: {reason}")
        await self._room.wait(failures, going.stopping)
        if not going.stopping.is_set():
            await self._note(run, RunState.RUNNING)

    async def _one(self, run: RunId, going: _Going) -> int:
        """One coordinator, from its start to its exit code."""
        try:
            return await self._coordinated(run, going)
        except OSError as error:
            if not is_full(error):
                raise
            return NO_ROOM

    async def _coordinated(self, run: RunId, going: _Going) -> int:
        command = [*self._settings.coordinator, str(self._settings.folder.resolve()), run]
        command += [] if self._settings.user_code else [NO_USER_CODE]
        going.user = await asyncio.to_thread(_user_of, self.folder(run))
        log_file = self.folder(run) / LOG
        going.process = await CoordinatorProcess.start(command, log_file)
        log.info("the coordinator of run %s is process %d", run, going.process.pid)
        if not going.started:
            going.started = True
            await self._note(run, RunState.RUNNING, started_at=self._clock())
        exited = asyncio.create_task(going.process.wait())
        stopping = asyncio.create_task(going.stopping.wait())
        silent = asyncio.create_task(
            self._switchboard.falls_silent(
                run, attach_s=self._settings.attach_s, alive_s=self._settings.alive_s
            )
        )
        try:
            await asyncio.wait((exited, stopping, silent), return_when=asyncio.FIRST_COMPLETED)
            if silent.done() and not (exited.done() or stopping.done()):
                log.warning("the coordinator of run %s %s: it is killed", run, silent.result())
                going.process.kill()
                return await exited
            if not exited.done():
                reason = "it was stopped"
                self._switchboard.tell(run, pb.ToCoordinator(stop=pb.Stop(reason=reason)))
                await asyncio.wait((exited,), timeout=self._settings.end_s)
            if not exited.done():
                return await going.process.end(self._settings.end_s)
            return exited.result()
        finally:
            stopping.cancel()
            silent.cancel()
            exited.cancel()
            if going.process is not None:
                going.process.kill()
            going.process = None

    def _write_folder(self, record: RunRecord, role: Role, code: bytes) -> None:
        """What a coordinator finds of its run; what is there already stays.

        Code is bytes here, which nobody looks into. RunExists if the run has other code.
        """
        folder = self.folder(record.id)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = {
            "name": record.name,
            "interactive": record.interactive,
            "user": {"name": record.owner, "role": role},
            "code": hashlib.sha256(code).hexdigest() if code else "",
        }
        if (there := folder / SUBMISSION).exists():
            if json.loads(there.read_bytes()).get("code", "") != facts["code"]:
                raise RunExists(
                    f"there is another run called {record.id}, of other code; a new run needs an "
                    "id of its own"
                )
            return
        files = {CODE: code} if code else {}
        files[CONFIG] = record.config_yaml.encode()
        files[SUBMISSION] = f"{json.dumps(facts)}\n".encode()  # last: the others are there then
        for name, content in files.items():
            path = folder / name
            aside = path.with_suffix(".tmp")
            aside.write_bytes(content)
            aside.replace(path)

    def _why_failed(self, run: RunId, going: _Going, code: int) -> str:
        told = str(going.told.get("failure") or "")
        return (
            told or f"its coordinator ended with exit code {code}; see `fedpilot runs logs {run}`"
        )

    async def _is_whole(self, run: str) -> bool:
        """Whether the folder of a run has all that was submitted: its last file is there."""
        return await asyncio.to_thread((self.folder(run) / SUBMISSION).exists)

    async def _set(self, run: RunId, state: RunState, **facts: Any) -> None:
        """Bring a run into a state, if it may come from where it is. StoreAway."""
        store = self._store
        await self._database.ask(store.set_run_state, run, state, among=BEFORE[state], **facts)
        self._events.wake(run)

    async def _note(self, run: RunId, state: RunState, **facts: Any) -> None:
        """The same, as soon as the store is there."""
        store = self._store
        await self._database.keep(store.set_run_state, run, state, among=BEFORE[state], **facts)
        self._events.wake(run)

    async def _written(self, run: RunId, state: RunState, facts: dict[str, Any]) -> bool:
        """The same, and wait for that; False where the store is there and does not take it."""
        store = self._store
        try:
            await self._database.insist(
                store.set_run_state, run, state, among=BEFORE[state], **facts
            )
        except StoreError:
            log.exception("that run %s is %s cannot be written; tried again", run, state)
            return False
        return True

    async def close(self) -> None:
        """End all coordinators; their runs go on when there is a mediator again."""
        self._ending = True
        tasks = []
        for going in list(self._going.values()):
            tasks.append(going.task)
            if going.process is not None:
                tasks.append(asyncio.create_task(_ended(going.process, self._settings.end_s)))
            else:
                going.task.cancel()
        if (
            tasks
        ):  # a run that has ended may wait for the store to be told so: the next one finds it
            await asyncio.wait(tasks, timeout=2 * self._settings.end_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ended(process: CoordinatorProcess, within_s: float) -> None:
    await process.end(within_s)


def _told_end(code: int) -> str:
    """How a coordinator ended that was to go on."""
    return f"was killed by signal {-code}" if code < 0 else "was interrupted, not by us"


def _user_of(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / SUBMISSION).read_bytes())["user"]
    return {"name": str(found["name"]), "role": str(found["role"])}
