"""SiteAgent: represents one site at its mediator, and reconnects after every broken link.

It dials out and opens no port. Its event loop handles neither Ray nor tensors; runners do.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ..core.links import LinkSpeed
from ..core.rules.disclosure import Declaration
from ..core.rules.policy import DAY_S
from ..core.storage.disk import Space, disk_trouble
from ..core.traffic import Direction
from ..errors import SiteLost
from ..identity import Credentials
from ..proto import federation_pb2 as pb
from ..wire.blobs.full_disk import space_of
from ..wire.blobs.store import BlobStore
from ..wire.messages import (
    PROTOCOL,
    Capacity,
    SiteName,
    capacity_message,
    id_message,
    link_message,
)
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
from .session import AgentSession, until_one_ends
from .settings import AgentSettings, pause_s
from .site_config.site_files import policy_of
from .text import in_short

log = logging.getLogger(__name__)

TICK_S = 1.0
STALE_BLOB_S = DAY_S
"""Blobs unused for this long are removed, complete or not."""
TIDY_S = 3_600.0
"""How often old runs and blobs are removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFacts:
    """An agent's facts about its site, fixed at its start."""

    name: SiteName
    mediator: str
    """HOST:PORT."""
    ray: RayChoice
    environment: Mapping[str, str]
    """What a command needs, besides the address, to reach the site's Ray."""
    data: Mapping[str, Declaration]
    data_json: str
    """The part of the data declarations that leaves the site."""
    policy: Path | None
    version: str
    link: LinkSpeed = field(default_factory=LinkSpeed)
    """As declared."""


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
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
        start: Start = RunnerProcess.start,
        space: Callable[[Path], Space] = space_of,
    ) -> None:
        """Needs a running event loop.

        `clock` is the event loop's; `wall_clock` gives epoch seconds, `chance` a number in [0, 1),
        `space` the disk space of a folder.
        """
        self._site, self._home, self._watch = site, home, watch
        self._settings, self._say, self._clock = settings, say, clock
        self._wall_clock, self._chance, self._space = wall_clock, chance, space
        self._disk_trouble = ""
        self._id = secrets.token_hex(8)
        """Distinguishes a new agent from one that reconnects."""
        self._session: AgentSession | None = None
        self._connected = False
        self._machines = home.machines()
        """As last saved."""
        self._channels = MediatorChannels(site.mediator, credentials)
        self._store = BlobStore(home.blobs, settings.blob_bytes, space=space)
        self._blobs = BlobClient(self._channels.blobs, self._store, self._crossed, chance=chance)
        self._runners = Runners(
            home,
            site.name,
            settings,
            ray=self._ray,
            data={name: each.to_json() for name, each in site.data.items()},
            policy=site.policy,
            happened=lambda run, event: self._work.happened(run, event),
            ended=lambda run, reason: say("runner_ended", run=run, reason=reason),
            at_work=lambda run: self._work.place_of(run),
            clock=clock,
            start=start,
        )
        policy = partial(policy_of, site.name, site.policy)
        self._transfers = OrderTransfers(
            site.name,
            self._store,
            self._blobs,
            SiteTraffic(home.traffic),
            policy=policy,
            wall_clock=wall_clock,
        )
        self._work = OrderExecutor(
            site.name,
            self._runners,
            self._transfers,
            self,
            link=site.link,
            policy=policy,
            settings=settings,
        )
        self.take, self.answer_taken = self._work.take, self._work.answer_taken
        self.renew = self._runners.renew

    async def run(self, *, release: bool = False) -> None:
        """Work until cancelled; SiteDismissed if the mediator dismisses the site.

        A successor inherits the runners, unless `release` or dismissed. An agent runs once.
        """
        reason = "the site's agent was ended"
        try:
            await self._adopt()
            await self._serve()
        except SiteDismissed as error:
            release, reason = True, str(error)
            raise
        finally:
            try:
                await self._work.close()
                left = () if release else self._runners.runs()
                await self._runners.close(release=release, reason=reason)
                if left:
                    self._say("runners_left", runs=list(left), lease_s=self._runners.lease_s)
            finally:
                await self._channels.close()

    async def _adopt(self) -> None:
        for run in await self._runners.adopt():
            runner = self._runners.of(run)
            if runner is not None:
                self._work.adopt(run, runner)
                self._say("runner_adopted", run=run, pid=runner.process.pid)

    async def _serve(self) -> None:
        looked = asyncio.Event()

        def changed(before: Look, now: Look) -> None:
            if not now.trouble:
                looked.set()
            self._looked(before, now)

        if not self._watch.look.trouble:
            looked.set()
        ended = await until_one_ends(
            self._watch.watch(changed),
            self._keep_leases(),
            self._keep_certified(),
            self._keep_tidy(),
            self._keep_room(),
            self._converse(looked),
        )
        for each in ended:
            each.result()

    async def _converse(self, looked: asyncio.Event) -> None:
        """Hold sessions one after the other, until CertificateExpired."""
        # A site whose first message reports trouble would be lost at once.
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.first_look_s):
                await looked.wait()
        failures = 0
        while True:
            self._channels.credentials.identity.check(self._wall_clock())
            session = AgentSession(self._channels.site.session(), self, self._settings, self._clock)
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
                self._work.pause()
            holding = bool(self._runners.runs())
            await asyncio.sleep(
                pause_s(self._settings, failures, holding=holding, chance=self._chance())
            )

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._runners.end_lapsed()

    async def _keep_certified(self) -> None:
        renewal = CertificateRenewal(
            self._channels,
            self._home.credentials_folder,
            warn_s=self._settings.expiry_warning_s,
            say=self._say,
            clock=self._clock,
            wall_clock=self._wall_clock,
            chance=self._chance,
        )
        while True:
            await renewal.renew()
            self._blobs.use(self._channels.blobs)
            if self._session is not None:
                self._session.leave()

    async def _keep_tidy(self) -> None:
        while True:
            now, keep_s = self._wall_clock(), self._settings.keep_s
            try:
                # Not in a thread, so no run gets its folder meanwhile.
                self._home.clean(now=now, keep_s=keep_s, but=self._runners.busy())
                await asyncio.to_thread(
                    self._store.clean, now=now, stale_after_s=STALE_BLOB_S, blobs_too=True
                )
            except OSError as error:
                log.warning("old runs and blobs could not be removed: %s", error)
            await asyncio.sleep(TIDY_S)

    async def _keep_room(self) -> None:
        """Remove models while the disk is full; a disk that stays full makes the site unusable."""
        while True:
            try:
                found = await asyncio.to_thread(self._look_at_disk)
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

    def _look_at_disk(self) -> str:
        space = self._space(self._home.folder)
        if space.free < space.kept_free:
            self._store.give_way()
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
            held=map(id_message, self._work.held()),
            runs=self._runners.runs(),
            link=link_message(self._site.link),
        )

    def state(self) -> tuple[Capacity, str]:
        return self._watch.look.capacity, self.trouble()

    def begin(self, welcome: pb.Welcome, send: Callable[[pb.FromSite], None]) -> None:
        self._connected = True
        self._runners.lease_s = welcome.lease_s
        held = len(self._work.held())
        self._say("connected", mediator=self._site.mediator, orders=held)
        self._work.begin(send)

    # -- what work asks ---------------------------------------------------------------------------

    def trouble(self) -> str:
        """Why the site cannot work (its Ray cluster or disk); empty if it can."""
        return self._watch.look.trouble or self._disk_trouble

    def environment(self) -> Mapping[str, str]:
        """The environment variables with which a command reaches Ray; empty without one."""
        address = self._watch.look.address
        return {**self._site.environment, "RAY_ADDRESS": address} if address else {}

    # -- what happens here ------------------------------------------------------------------------

    def _ray(self) -> RayChoice:
        """The Ray for a new runner: the one that the agent watches."""
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
            # Runners adopted before the agent knew the address of the Ray.
            gone = f"its Ray is the one at {now.address} now"
            going = self._runners.not_at(now.address)
        for run in going:
            self._runners.kill(run, SiteLost(self._site.name, gone))
        if now.trouble != before.trouble and self._session is not None:
            self._session.beat()

    def _keep_machines(self, machines: frozenset[str]) -> None:
        """Save a changed set of machines; retry a failed write at the next look."""
        if not machines or machines == self._machines:
            return
        try:
            self._home.write_machines(machines)
        except OSError as error:
            log.warning("the machines of this site's Ray are not written down: %s", error)
        else:
            self._machines = machines

    def _crossed(self, direction: Direction, digest: str, nbytes: int) -> None:
        if self._session is not None:
            self._session.moved()
        self._transfers.crossed(direction, digest, nbytes)
