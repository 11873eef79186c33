"""Runners: one process per run at this site, which outlives the agent.

A runner starts when its run is first prepared here, and ends with its run or lease. A later agent
adopts it. The agent kills a runner whose Ray is gone, since calls to that Ray hang forever. When a
runner dies, its run loses this site; the next prepare starts another runner, after a growing pause
and within a budget (`core.restarts`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ...errors import SiteLost
from ...proto import federation_pb2 as pb
from ...wire.local_socket import RUNNER_SOCKET
from ...wire.messages import RunId, SiteName
from ...workload import ENTRY_POINTS
from ..home import SiteHome
from ..runner.client import RunnerClient
from ..runner.deaths import AT_ITS_START, Deaths
from ..runner.errors import BadSettings
from ..runner.process import RayChoice, RunnerProcess, RunnerSettings
from ..settings import AgentSettings

log = logging.getLogger(__name__)

FILES = "files"
"""The subfolder of a run for workload files that survive the runner."""
POLL_S = 0.02
REMEMBERED = 256
"""Runs whose ends are remembered."""

Start = Callable[[Path, RunnerSettings], RunnerProcess]
Happened = Callable[[RunId, pb.Happened], None]
Ended = Callable[[RunId, str], None]
AtWork = Callable[[RunId], str]
"""What a run's runner is working on, in words; empty if idle."""


@dataclass(slots=True)
class Live:
    """A runner with a connection to this agent."""

    runner: RunnerClient
    watcher: asyncio.Task[None]
    renewed_at: float
    ending: bool = False
    """Whether it is releasing everything and takes no more orders."""
    why: SiteLost | None = None
    """Why it is gone, once known."""


@dataclass(slots=True)
class _Turn:
    """The right to start a run's runner, which one task holds at a time."""

    lock: asyncio.Lock
    wanted: int = 0
    """How many tasks hold it or wait for it."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while a release waits; cancels the pause before a start."""


class Runners:
    """All runners of a site; used within one event loop."""

    def __init__(
        self,
        home: SiteHome,
        site: SiteName,
        settings: AgentSettings,
        *,
        ray: Callable[[], RayChoice],
        data: Mapping[str, Any],
        policy: Path | None,
        happened: Happened,
        ended: Ended,
        at_work: AtWork,
        clock: Callable[[], float],
        start: Start = RunnerProcess.start,
    ) -> None:
        self._home, self._site, self._settings = home, site, settings
        self._ray, self._data, self._policy = ray, data, policy
        self._happened, self._ended = happened, ended
        self._at_work = at_work
        self._clock, self._start = clock, start
        self.lease_s = settings.lease_s
        """How long a renewed lease lasts; the mediator sets it."""
        self._live: dict[RunId, Live] = {}
        self._children: dict[RunId, RunnerProcess] = {}
        """The runners that this process started and must reap."""
        self._turns: dict[RunId, _Turn] = {}
        """Turns of the runs whose runner is being started or awaited."""
        self._ends: dict[RunId, SiteLost] = {}
        self._deaths: dict[RunId, Deaths] = {}
        self._closed = False

    def runs(self) -> tuple[RunId, ...]:
        return tuple(sorted(self._live))

    def busy(self) -> frozenset[RunId]:
        """The runs that have a runner here, or will in a moment."""
        return frozenset(self._live) | frozenset(self._turns)

    def of(self, run: RunId) -> RunnerClient | None:
        """The runner of a run, if it takes orders."""
        live = self._live.get(run)
        return None if live is None or live.ending else live.runner

    async def settled(self, run: RunId) -> RunnerClient | None:
        """As `of`, after any start under way; a start that still pauses is cancelled."""
        if (starting := self._turns.get(run)) is not None:
            starting.released.set()
            async with self._turn(run):
                starting.released.clear()
        return self.of(run)

    async def why_gone(self, run: RunId, runner: RunnerClient, said: str) -> SiteLost:
        """Why a runner ended; `said` is what its connection reported."""
        live = self._live.get(run)
        if live is None or live.runner is not runner:
            return self._ends.get(run) or SiteLost(self._site, said)
        await asyncio.wait([live.watcher], timeout=3 * self._settings.runner_end_s)
        return live.why or SiteLost(self._site, said)

    def deaths(self, run: RunId) -> Deaths:
        """The counted deaths of a run's runners here."""
        if (found := self._deaths.get(run)) is None:
            found = self._deaths[run] = Deaths(self._site, self._settings.restarts, self._clock)
            while len(self._deaths) > REMEMBERED:
                del self._deaths[next(iter(self._deaths))]
        return found

    def why_none(self, run: RunId) -> SiteLost:
        """Why a run has no runner here; it may reserve here again."""
        return self._ends.get(run) or SiteLost(
            self._site, f"it holds nothing for {run}: its part has ended, or was never prepared"
        )

    def no_room_for(self, run: RunId) -> str:
        """Why a run cannot have a runner here; empty if it can."""
        others, most = self.busy() - {run}, self._settings.most_runs
        return f"site {self._site} has a part in {most} runs already" if len(others) >= most else ""

    def not_at(self, address: str) -> tuple[RunId, ...]:
        """The runs whose runners use a running Ray at another address."""
        return tuple(
            run
            for run, live in sorted(self._live.items())
            if live.runner.process.settings.ray.address not in (None, address)
        )

    async def adopt(self) -> tuple[RunId, ...]:
        """Connect to the home's runners; end outdated ones and kill those that do not answer."""
        ending = []
        for run, folder in self._home.run_folders().items():
            try:
                process = await asyncio.to_thread(RunnerProcess.find, folder)
            except OSError as error:
                log.warning("run %s: its runner cannot be looked for: %s", run, error)
                continue
            if process is None:
                continue
            if reason := self._unfit(process.settings, self._settings_of(run, folder)):
                ending.append(self._end_found(run, process, reason))
                continue
            try:
                await self._connect(run, folder)
            except (SiteLost, BadSettings) as error:
                log.warning("run %s: its runner cannot be adopted: %s", run, error)
                process.kill()
        await asyncio.gather(*ending)
        return self.runs()

    @staticmethod
    def _unfit(found: RunnerSettings, now: RunnerSettings) -> str:
        """Say why a runner with these settings is not adopted; empty if it is."""
        if found.protocol != now.protocol:
            return f"it speaks protocol {found.protocol}, this agent {now.protocol}"
        changed = found.changed(now)
        return f"the site's admin has changed its {', '.join(changed)}" if changed else ""

    async def _end_found(self, run: RunId, process: RunnerProcess, reason: str) -> None:
        """End a runner without connecting to it, and wait for its process to end."""
        self._remember(run, SiteLost(self._site, f"its part of {run} was ended: {reason}"))
        await asyncio.to_thread(process.end, self._settings.runner_end_s)
        self._ended(run, reason)

    async def ensure(self, run: RunId) -> RunnerClient:
        """Return the runner of a run; start one if there is none.

        Waits for a runner that is ending, and for the pause after a death. RunnerDied,
        RunnersSpent, other SiteLost, RunnerExists.
        """
        async with self._turn(run) as turn:
            if (there := self.of(run)) is not None:
                return there
            if (ending := self._live.get(run)) is not None:
                # `end` kills it meanwhile; if even that fails, the start raises RunnerExists.
                await asyncio.wait([ending.watcher], timeout=3 * self._settings.runner_end_s)
            await self._pause(run, turn)
            folder = self._home.run_folder(run)
            process = await self._started(folder, self._settings_of(run, folder))
            self._children[run] = process
            try:
                return await self._connect(run, folder)
            except SiteLost as error:
                ended = not process.alive()
                process.kill()
                await self._reap(process)
                del self._children[run]
                how = process.how_it_ended() if ended else "did not listen in time"
                why = self.deaths(run).died(process, AT_ITS_START, how)
                self._remember(run, why)
                raise why from error
            except BaseException:
                process.kill()
                await self._reap(process)
                raise

    async def _pause(self, run: RunId, turn: _Turn) -> None:
        """Wait until the next runner may start. RunnersSpent; SiteLost if the run is released."""
        deaths = self.deaths(run)
        with suppress(TimeoutError):
            async with asyncio.timeout(deaths.pause_s()):
                await turn.released.wait()
        if turn.released.is_set() and deaths:
            raise SiteLost(self._site, f"{run} was released while its next runner waited")

    async def _started(self, folder: Path, settings: RunnerSettings) -> RunnerProcess:
        """Start a process; kill it if this task is cancelled."""
        starting = asyncio.ensure_future(asyncio.to_thread(self._start, folder, settings))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_kill_started)
            raise

    @asynccontextmanager
    async def _turn(self, run: RunId) -> AsyncIterator[_Turn]:
        turn = self._turns.setdefault(run, _Turn(asyncio.Lock()))
        turn.wanted += 1
        try:
            async with turn.lock:
                yield turn
        finally:
            turn.wanted -= 1
            if not turn.wanted:
                del self._turns[run]

    def renew(self, runs: Collection[str]) -> None:
        """Renew the leases of these runs, and forget the deaths of all others."""
        self._deaths = {run: deaths for run, deaths in self._deaths.items() if run in runs}
        for run, live in self._live.items():
            if run in runs:
                live.renewed_at = self._clock()
                live.runner.renew(self.lease_s)

    def end_lapsed(self) -> None:
        """Kill runners that did not end with their lease."""
        for run, live in list(self._live.items()):
            late = self._clock() - live.renewed_at - self.lease_s
            if late > self._settings.lapse_grace_s:
                reason = f"its lease of {self.lease_s:g} s lapsed"
                self.kill(run, SiteLost(self._site, f"its part of {run} has ended: {reason}"))

    def kill(self, run: RunId, why: SiteLost) -> None:
        if (live := self._live.get(run)) is not None:
            live.why = live.why or why
            live.runner.process.kill()

    async def end(self, run: RunId, reason: str) -> None:
        """Have a runner release what it holds, and wait for its process to end."""
        live = self._live.get(run)
        if live is None:
            return
        live.ending = True
        live.runner.end(reason)
        await asyncio.wait([live.watcher], timeout=self._settings.runner_end_s)
        if not live.watcher.done():
            why = f"its part of {run} has ended: {reason}; it did not end in time"
            self.kill(run, SiteLost(self._site, why))
            await asyncio.wait([live.watcher], timeout=self._settings.runner_end_s)

    async def close(self, *, release: bool, reason: str) -> None:
        """End all runners if `release`, else leave them to the next agent; may be called twice."""
        if release:
            await asyncio.gather(*(self.end(run, reason) for run in self.runs()))
        self._closed = True
        for live in list(self._live.values()):
            live.watcher.cancel()
            await live.runner.close()
        self._live.clear()

    def _settings_of(self, run: RunId, folder: Path) -> RunnerSettings:
        installed = entry_points(group=ENTRY_POINTS).names
        return RunnerSettings(
            run=run,
            site=self._site,
            ray=self._ray(),
            blobs=self._home.blobs,
            blob_limit_bytes=self._settings.blob_bytes,
            lease_s=self.lease_s,
            orphan_s=self._settings.orphan_s,
            folder=folder / FILES,
            data=self._data,
            policy=self._policy,
            workload=next(iter(installed)) if len(installed) == 1 else "",
        )

    async def _connect(self, run: RunId, folder: Path) -> RunnerClient:
        runner = await RunnerClient.connect(
            folder,
            lease_s=self.lease_s,
            on_event=lambda event: self._happened(run, event),
            within_s=self._settings.runner_start_s,
        )
        watcher = asyncio.create_task(self._watch(run, runner))
        self._live[run] = Live(runner, watcher, self._clock())
        return runner

    async def _watch(self, run: RunId, runner: RunnerClient) -> None:
        """Wait for the end of a runner or its connection, and clean up."""
        gone = await runner.gone()
        live, place = self._live[run], self._at_work(run)
        process = self._children.pop(run, runner.process)
        if not await asyncio.to_thread(process.wait, self._settings.runner_end_s):
            process.kill()
            await asyncio.to_thread(process.wait, self._settings.runner_end_s)
        await self._reap(process)
        if live.why is None and (live.ending or runner.farewell):
            live.why = SiteLost(self._site, f"its part of {run} has ended: {gone.reason}")
        if live.why is None:
            live.why = self.deaths(run).died(process, place, process.how_it_ended())
        self._remember(run, live.why)
        await runner.close()
        with suppress(OSError):
            (process.folder / RUNNER_SOCKET).unlink()
        self._live.pop(run, None)  # now another runner may use the folder
        if not self._closed:
            self._ended(run, live.why.reason)

    async def _reap(self, child: RunnerProcess) -> None:
        """Reap a child, whose lock is free a moment before."""
        deadline = self._clock() + self._settings.runner_end_s
        while child.pid is not None and self._clock() < deadline:
            await asyncio.sleep(POLL_S)

    def _remember(self, run: RunId, why: SiteLost) -> None:
        self._ends.pop(run, None)
        self._ends[run] = why
        while len(self._ends) > REMEMBERED:
            del self._ends[next(iter(self._ends))]


def _kill_started(starting: asyncio.Future[RunnerProcess]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().kill()
