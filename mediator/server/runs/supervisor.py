"""Supervisor: keeps a coordinator process at work on each run until the run ends.

A run's first coordinator waits for the run's turn in the queue. A coordinator's exit code says how
the run ended. Killed ones are restarted within a budget. A run whose sites were full goes back to
the queue.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...coordinator.process import NO_USER_CODE
from ...core.restarts import pause_before_restart
from ...proto import federation_pb2 as pb
from ...wire.blobs.full_disk import is_full
from ...wire.messages import RunId
from ..events import EventLog
from ..orders.coordinator_registry import CoordinatorRegistry
from ..orders.sites import SiteRegistry
from ..settings import ServerSettings
from ..store import RunRecord, RunState, StoreError
from .coordinator_process import FINISHED, NO_ROOM, SITES_FULL, STOPPED, CoordinatorProcess
from .disk_room import LONGEST_PAUSE_S, DiskRoom
from .run_folders import LOG, RunFolders
from .run_queue import RunQueue, Turn
from .run_states import RunStates

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Going:
    """A run that has a coordinator, or soon will again."""

    task: asyncio.Task[None]
    started: bool
    """Whether its start is in the store."""
    record: RunRecord
    """As it was when this mediator began to supervise it."""
    turn: asyncio.Future[Turn] | None
    """Done once the run may begin; None after that."""
    process: CoordinatorProcess | None = None
    deaths: list[float] = field(default_factory=list)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    user: dict[str, Any] = field(default_factory=dict)
    """The owner's name and role, which sites' policies check."""
    told: dict[str, Any] = field(default_factory=dict)
    """The fields of the coordinator's last `run_finished`."""


@dataclass(eq=False)
class Supervisor:
    """Supervises all runs in progress."""

    _settings: ServerSettings
    _clock: Callable[[], float]
    _states: RunStates
    _folders: RunFolders
    _events: EventLog
    _attached: CoordinatorRegistry
    _sites: SiteRegistry
    _room: DiskRoom
    queue: RunQueue
    _going: dict[RunId, Going] = field(default_factory=dict)
    _ending: bool = False

    def going(self, run: RunId) -> Going | None:
        return self._going.get(run)

    def user(self, run: RunId) -> dict[str, Any]:
        """The name and role of the owner of a run in progress."""
        going = self._going.get(run)
        return {} if going is None else going.user

    async def said(self, run: RunId, event_json: str) -> None:
        """Append an event of a run, and remember its `run_finished`."""
        try:
            event = json.loads(event_json)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict) or "\x00" in event_json:
            log.error("run %s: its coordinator sent something that is no event", run)
            return
        going = self._going.get(run)
        if going is not None and event.get("event") == "run_finished":
            going.told = event
        try:
            await self._events.append(run, event_json)
        except StoreError as error:  # only this event is lost; the session goes on
            log.error("run %s: an event is not kept: %s", run, error)

    def begin(self, record: RunRecord, *, started: bool = False) -> None:
        """Supervise a run from now on; `started` if it has begun already."""
        run = RunId(record.id)
        turn = None
        if started:
            self._attached.begin(run)
            self.queue.goes_on(record)
        else:
            self._attached.wait(run)
            turn = self.queue.wait(record)
        task = asyncio.get_running_loop().create_task(self._supervise(run))
        self._going[run] = Going(task, started, record, turn)

    async def _supervise(self, run: RunId) -> None:
        """Keep a coordinator at work on a run until the run's end is stored."""
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
            await self._states.insist(run, state, **facts)
            log.info("run %s is %s%s", run, state, f": {reason}" if reason else "")
            whose = {"owner": going.record.owner, "shared": going.record.shared}
            self._events.say(f"run_{state}", run=run, **whose, reason=reason, digest=digest)
        finally:
            del self._going[run]
            self._attached.end(run)
            if not self._ending:
                self._sites.orders.run_over(run)
                self.queue.end(run)
            self._events.wake(run)

    async def _watch(self, run: RunId, going: Going) -> tuple[RunState, str]:
        """Start coordinators until one reports the run's end; return the final state and reason."""
        no_room = 0
        while True:
            began_at = self._clock()
            try:
                if not await self._has_turn(run, going):
                    return RunState.STOPPED, "it was stopped"
                code = await self._coordinated(run, going)
            except OSError as error:
                if not is_full(error):
                    raise
                code = NO_ROOM
            if self._ending:
                return RunState.INTERRUPTED, ""
            if code == NO_ROOM and not going.stopping.is_set():
                no_room = 0 if self._clock() - began_at > LONGEST_PAUSE_S else no_room
                await self._wait_for_room(run, going, no_room)
                no_room += 1
                continue
            if code == SITES_FULL and not going.stopping.is_set():
                self._back_in_line(run, going)
                continue
            if code == FINISHED:
                return RunState.FINISHED, str(going.told.get("reason") or "")
            if going.stopping.is_set():
                return RunState.STOPPED, "it was stopped"
            if code > 0 and code != STOPPED:
                hint = (
                    f"its coordinator ended with exit code {code}; see `fedpilot runs logs {run}`"
                )
                return RunState.FAILED, str(going.told.get("failure") or "") or hint
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
                await self._states.note(run, RunState.RUNNING, restarted=True)

    async def _has_turn(self, run: RunId, going: Going) -> bool:
        """Wait in line until a run may begin; return False if it was stopped meanwhile. OSError."""
        if going.turn is None:
            return True
        if not going.turn.done():
            await self._say_queued(run)
            stopping = asyncio.create_task(going.stopping.wait())
            try:
                await asyncio.wait((going.turn, stopping), return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopping.cancel()
        if going.stopping.is_set():
            return False
        self._attached.begin(run)
        await asyncio.to_thread(self._folders.write_turn, run, going.turn.result())
        going.turn = None
        return True

    async def _say_queued(self, run: RunId) -> None:
        found = self.queue.wait_of(run)
        reason = "the mediator has just started" if found is None else found[0].reason
        await self._states.note(run, RunState.QUEUED, reason=reason)
        log.info("run %s waits in line: %s", run, reason)
        self._events.say("run_queued", run=run, reason=reason)
        try:
            await self._events.tell(run, "run_waiting", run_id=run, reason=reason)
        except StoreError as error:  # only this event is lost
            log.error("run %s: an event is not kept: %s", run, error)

    def _back_in_line(self, run: RunId, going: Going) -> None:
        """Put a run in line again whose sites were full; sites release what it may hold there."""
        self._attached.wait(run)
        self._sites.orders.run_over(run)
        self.queue.refused(run)
        going.turn = self.queue.wait(going.record)
        going.started = False

    async def _wait_for_room(self, run: RunId, going: Going, failures: int) -> None:
        await self._room.look_and_say(self._events)
        reason = self._room.trouble or "a disk of the mediator is full"
        if not failures:
            log.warning("run %s waits: %s", run, reason)
            self._events.say("run_waiting", run=run, reason=reason)
        await self._states.note(run, RunState.RUNNING, reason=f"it waits: {reason}")
        await self._room.wait(failures, going.stopping)
        if not going.stopping.is_set():
            await self._states.note(run, RunState.RUNNING)

    async def _coordinated(self, run: RunId, going: Going) -> int:
        """Run one coordinator and return its exit code. OSError."""
        command = [*self._settings.coordinator, str(self._settings.folder.resolve()), run]
        command += [] if self._settings.user_code else [NO_USER_CODE]
        going.user = await asyncio.to_thread(self._folders.user, run)
        log_file = self._folders.of(run) / LOG
        going.process = await CoordinatorProcess.start(command, log_file)
        log.info("the coordinator of run %s is process %d", run, going.process.pid)
        if not going.started:
            going.started = True
            await self._states.note(run, RunState.RUNNING, started_at=self._clock())
        exited = asyncio.create_task(going.process.wait())
        stopping = asyncio.create_task(going.stopping.wait())
        silent = asyncio.create_task(
            self._attached.falls_silent(
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
                self._attached.tell(run, pb.ToCoordinator(stop=pb.Stop(reason=reason)))
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

    async def close(self) -> None:
        """End all coordinators; the next mediator continues their runs."""
        self._ending = True
        tasks: list[asyncio.Task[Any]] = []
        for going in list(self._going.values()):
            tasks.append(going.task)
            if going.process is not None:
                tasks.append(asyncio.create_task(going.process.end(self._settings.end_s)))
            else:
                going.task.cancel()
        if tasks:
            # The end of a run may still wait for the store: the next mediator will find it again.
            await asyncio.wait(tasks, timeout=2 * self._settings.end_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _told_end(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else "was interrupted, not by us"
