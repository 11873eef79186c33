"""SiteAgent: represents one site at its mediator, and reconnects after every broken link.

It dials out and opens no port. It is one event loop in one process, without Ray and tensors, which
belong to runners and to the probe.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..core.disk import Space, disk_trouble
from ..core.rules.disclosure import Declaration
from ..core.rules.policy import DAY_S
from ..core.traffic import Direction
from ..errors import SiteLost
from ..identity import Credentials
from ..proto import federation_pb2 as pb
from ..wire.blobs.full_disk import space_of
from ..wire.blobs.store import BlobStore
from ..wire.messages import PROTOCOL, Capacity, RunId, SiteName, capacity_message, id_message
from ..wire.transfer import BlobClient
from .errors import SessionBroken, SessionLeft, SiteDismissed
from .home import SiteHome
from .membership.channel import MediatorChannels
from .membership.renewal import CertificateRenewal, Say
from .orders.order_executor import OrderExecutor
from .orders.order_transfers import OrderTransfers
from .orders.runners import Runners, Start
from .orders.traffic import SiteTraffic
from .runner.process import RayChoice, RunnerProcess
from .scans.ray_watchdog import Look, Watch
from .session import AgentSession
from .settings import AgentSettings, pause_s
from .site_config.site_files import policy_of
from .text import in_short

log = logging.getLogger(__name__)

TICK_S = 1.0
STALE_BLOB_S = DAY_S
"""After so long nobody goes on with half a blob, or needs a whole one."""
TIDY_S = 3_600.0
"""How often what nobody needs any more is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFacts:
    """What an agent is told of its site."""

    name: SiteName
    mediator: str
    """HOST:PORT."""
    ray: RayChoice
    environment: Mapping[str, str]
    """What a command needs to reach the site's Ray, beside its address."""
    data: Mapping[str, Declaration]
    data_json: str
    """What of it leaves the site."""
    policy: Path | None
    version: str


class SiteAgent:
    """One agent, from its start to its end."""

    def __init__(
        self,
        site: SiteFacts,
        home: SiteHome,
        watch: Watch,
        credentials: Credentials,
        settings: AgentSettings,
        *,
        say: Say,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        chance: Callable[[], float],
        start: Start = RunnerProcess.start,
        space: Callable[[Path], Space] = space_of,
    ) -> None:
        """`clock` is the event loop's, `wall_clock` gives epoch seconds, `chance` is in [0, 1).

        `space` says what the disk of a folder has.
        """
        self._site, self._home, self._watch = site, home, watch
        self._credentials, self._settings = credentials, settings
        self._say, self._clock, self._wall_clock = say, clock, wall_clock
        self._chance, self._space = chance, space
        self._disk_trouble = ""
        self._id = secrets.token_hex(8)
        """Tells a successor from an agent that reconnects."""
        self._runners = Runners(
            home,
            site.name,
            settings,
            ray=self._ray,
            data={name: each.to_json() for name, each in site.data.items()},
            policy=site.policy,
            happened=self._happened,
            ended=self._ended,
            at_work=self._place_of,
            clock=clock,
            start=start,
        )
        self._work: OrderExecutor | None = None
        self._transfers: OrderTransfers | None = None
        self._session: AgentSession | None = None
        self._connected = False
        self._machines = home.machines()
        """As they were written down last."""

    async def run(self, *, release: bool = False) -> None:
        """Work until it is cancelled; SiteDismissed if the mediator wants no more of the site.

        The runners are left to a successor unless `release` or the mediator says otherwise.
        """
        settings = self._settings
        reason = "the site's agent was ended"
        async with AsyncExitStack() as undo:
            store = BlobStore(self._home.blobs, settings.blob_bytes, space=self._space)
            line = MediatorChannels(self._site.mediator, self._credentials)
            undo.push_async_callback(line.close)
            blobs = BlobClient(line.blobs, store, self._crossed, chance=self._chance)
            name, policy = self._site.name, partial(policy_of, self._site.name, self._site.policy)
            self._transfers = OrderTransfers(
                name,
                store,
                blobs,
                SiteTraffic(self._home.traffic),
                policy=policy,
                wall_clock=self._wall_clock,
            )
            work = OrderExecutor(
                name, self._runners, self._transfers, self, policy=policy, settings=settings
            )
            self._work = work
            try:
                await self._adopt(work)
                await self._serve(line, blobs, store)
            except SiteDismissed as error:
                release, reason = True, str(error)
                raise
            finally:
                await work.close()
                left = () if release else self._runners.runs()
                await self._runners.close(release=release, reason=reason)
                if left:
                    self._say("runners_left", runs=list(left), lease_s=self._runners.lease_s)

    async def _adopt(self, work: OrderExecutor) -> None:
        for run in await self._runners.adopt():
            runner = self._runners.of(run)
            if runner is not None:
                work.adopt(run, runner)
                self._say("runner_adopted", run=run, pid=runner.process.pid)

    async def _serve(self, line: MediatorChannels, blobs: BlobClient, store: BlobStore) -> None:
        """Run the agent's tasks side by side until one of them ends."""
        looked = asyncio.Event()

        def changed(before: Look, now: Look) -> None:
            if not now.trouble:
                looked.set()
            self._looked(before, now)

        if not self._watch.look.trouble:
            looked.set()
        beside = [
            self._watch.watch(changed),
            self._keep_leases(),
            self._keep_certified(line, blobs),
            self._keep_tidy(store),
            self._keep_room(store),
        ]
        doing = [asyncio.create_task(each) for each in (*beside, self._speak(line, looked))]
        try:
            ended, _ = await asyncio.wait(doing, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in doing:
                each.cancel()
            await asyncio.gather(*doing, return_exceptions=True)
        for each in ended:
            each.result()

    async def _speak(self, line: MediatorChannels, looked: asyncio.Event) -> None:
        # A site whose first word is of trouble is lost before it has begun.
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.first_look_s):
                await looked.wait()
        await self._converse(line)

    async def _converse(self, line: MediatorChannels) -> None:
        """Hold one session after the other. CertificateExpired ends it."""
        failures = 0
        while True:
            line.credentials.identity.check(self._wall_clock())
            session = AgentSession(line.site.session(), self, self._settings, self._clock)
            self._session, self._connected = session, False
            try:
                await session.run()
            except SessionLeft:
                continue
            except SessionBroken as error:
                failures = 1 if self._connected else failures + 1
                if self._connected or failures == 1:
                    self._say("disconnected", mediator=self._site.mediator, reason=str(error))
            finally:
                self._session = None
                if self._work is not None:
                    self._work.pause()
            holding = bool(self._runners.runs())
            await asyncio.sleep(
                pause_s(self._settings, failures, holding=holding, chance=self._chance())
            )

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._runners.end_lapsed()

    async def _keep_certified(self, line: MediatorChannels, blobs: BlobClient) -> None:
        renewal = CertificateRenewal(
            line,
            self._home.credentials_folder,
            warn_s=self._settings.expiry_warning_s,
            say=self._say,
            clock=self._clock,
            wall_clock=self._wall_clock,
            chance=self._chance,
        )
        while True:
            await renewal.renew()
            blobs.use(line.blobs)
            if self._session is not None:
                self._session.leave()

    async def _keep_tidy(self, store: BlobStore) -> None:
        """Remove old runs' folders and old models."""
        while True:
            now, keep_s = self._wall_clock(), self._settings.keep_s
            try:
                # Here, not in a thread: no run gets its folder meanwhile.
                self._home.clean(now=now, keep_s=keep_s, but=self._runners.busy())
                await asyncio.to_thread(
                    store.clean, now=now, stale_after_s=STALE_BLOB_S, blobs_too=True
                )
            except OSError as error:
                log.warning("what nobody needs any more could not be removed: %s", error)
            await asyncio.sleep(TIDY_S)

    async def _keep_room(self, store: BlobStore) -> None:
        """Remove models while the disk is full. A disk that stays full makes the site unusable."""
        while True:
            try:
                found = await asyncio.to_thread(self._look_at_disk, store)
            except OSError as error:
                found = f"the disk of its home cannot be looked at: {in_short(error)}"
            before, self._disk_trouble = self._disk_trouble, found
            if bool(found) is not bool(before):
                if found:
                    self._say("disk_in_trouble", reason=found)
                else:
                    self._say("disk_has_room")
                if self._session is not None:
                    self._session.beat()
            await asyncio.sleep(self._settings.watch_s)

    def _look_at_disk(self, store: BlobStore) -> str:
        space = self._space(self._home.folder)
        if space.free < space.kept_free:
            store.give_way()
            space = self._space(self._home.folder)
        return disk_trouble(space, "its home", before=bool(self._disk_trouble))

    # -- what a session asks ----------------------------------------------------------------------

    def hello(self) -> pb.Hello:
        return pb.Hello(
            protocol=PROTOCOL,
            site=self._site.name,
            version=self._site.version,
            agent=self._id,
            capacity=capacity_message(self._watch.look.capacity),
            data_json=self._site.data_json,
            held=map(id_message, self._at_work.held()),
            runs=self._runners.runs(),
        )

    def state(self) -> tuple[Capacity, str]:
        return self._watch.look.capacity, self.trouble()

    def begin(self, welcome: pb.Welcome, send: Callable[[pb.FromSite], None]) -> None:
        self._connected = True
        self._runners.lease_s = welcome.lease_s
        held = len(self._at_work.held())
        self._say("connected", mediator=self._site.mediator, orders=held)
        self._at_work.begin(send)

    def take(self, order: pb.Order) -> None:
        self._at_work.take(order)

    def answer_taken(self, id: pb.OrderId) -> None:
        self._at_work.answer_taken(id)

    def renew(self, runs: list[str]) -> None:
        self._runners.renew(runs)

    @property
    def _at_work(self) -> OrderExecutor:
        if self._work is None:
            raise RuntimeError("the agent is not running")
        return self._work

    # -- what work asks ---------------------------------------------------------------------------

    def trouble(self) -> str:
        """Why the site cannot be worked with: its Ray cluster, or its disk."""
        return self._watch.look.trouble or self._disk_trouble

    def environment(self) -> Mapping[str, str]:
        """The environment variables with which a command reaches Ray; empty without one."""
        address = self._watch.look.address
        return {**self._site.environment, "RAY_ADDRESS": address} if address else {}

    # -- what happens here ------------------------------------------------------------------------

    def _ray(self) -> RayChoice:
        """Where a new runner connects: to the Ray that the agent watches."""
        choice = self._site.ray
        return replace(choice, address=self._watch.look.address) if choice.address else choice

    def _looked(self, before: Look, now: Look) -> None:
        self._keep_machines(now.machines)
        gone = ""
        if now.in_trouble:
            gone = now.trouble
            if not before.in_trouble:
                self._say("ray_in_trouble", reason=now.trouble)
        elif now.cluster != before.cluster:
            gone = "its Ray cluster was started anew"
        if before.in_trouble and not now.trouble:
            self._say("ray_is_back", address=now.address, machines=now.capacity.machines)
        going = self._runners.runs() if gone else ()
        if not gone and now.address and now.address != before.address:
            # What was adopted before anybody knew where the Ray is.
            gone = f"its Ray is the one at {now.address} now"
            going = self._runners.not_at(now.address)
        for run in going:
            self._runners.kill(run, SiteLost(self._site.name, gone))
        if now.trouble != before.trouble and self._session is not None:
            self._session.beat()

    def _keep_machines(self, machines: frozenset[str]) -> None:
        """Save a changed set of machines. A failed write is tried again at the next look."""
        if not machines or machines == self._machines:
            return
        try:
            self._home.write_machines(machines)
        except OSError as error:
            log.warning("the machines of this site's Ray are not written down: %s", error)
        else:
            self._machines = machines

    def _happened(self, run: RunId, event: pb.Happened) -> None:
        if self._work is not None:
            self._work.happened(run, event)

    def _place_of(self, run: RunId) -> str:
        return "" if self._work is None else self._work.place_of(run)

    def _crossed(self, direction: Direction, digest: str, nbytes: int) -> None:
        if self._session is not None:
            self._session.moved()
        if self._transfers is not None:
            self._transfers.crossed(direction, digest, nbytes)

    def _ended(self, run: RunId, reason: str) -> None:
        self._say("runner_ended", run=run, reason=reason)


def told_data(documents: Mapping[str, Any]) -> str:
    """The text of what leaves the site of its data sets, by name."""
    return json.dumps(dict(documents), allow_nan=False) if documents else ""
