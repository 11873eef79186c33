"""Mediator: the whole process, from its folder to its ports, and its orderly end.

Parts end in reverse order: it ends coordinators, says farewell to sites, closes the ports, writes
the traffic counts and closes the store. Two mediators never share a folder.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, Self

import grpc
import grpc.aio

from fedpilot.common.host.exit_codes import BAD_INPUT

from ..core.connection_limits import ConnectionLimits, Places, fitting
from ..errors import MediatorError
from ..identity.certificates import DAY_S
from ..identity.tls import server_credentials
from ..proto import federation_pb2 as pb
from ..wire.blobs.full_disk import space_of
from ..wire.blobs.store import BlobStore
from ..wire.local_socket import COORDINATORS_SOCKET, LOCAL_OPTIONS, local_address
from ..wire.rpc import COORDINATOR, JOIN, MANY_PEERS_OPTIONS, MESSAGE_OPTIONS, SITE, USER, handler
from ..wire.transfer import BlobService, TransferSettings
from .connections.authorization import Guard
from .connections.connection_watcher import ConnectionWatcher, descriptors
from .connections.own_identity import OwnIdentity, own_identity
from .connections.sessions import SiteSessions
from .events import EventLog
from .orders.coordinator_registry import CoordinatorRegistry
from .orders.sites import SiteRegistry
from .orders.traffic_accounting import TrafficAccounting
from .runs.disk_room import DiskRoom
from .runs.retention import Retaining
from .runs.run_folders import RunFolders
from .runs.run_queue import RunQueue
from .runs.run_states import RunStates
from .runs.runs import Runs
from .runs.supervisor import Supervisor
from .services.administration import Administration
from .services.blob_handlers import BlobGate, blob_handlers
from .services.certification import LARGEST_REQUEST, Certification
from .services.coordinators import Coordinators
from .services.questions import Questions
from .services.user_runs import UserRuns
from .services.user_sites import UserSites
from .settings import ServerSettings
from .store import Store
from .store.database import Database

log = logging.getLogger(__name__)

STALE_S = 3_600.0
"""A start removes partial blobs that were untouched for this long."""
END_S = 2.0
"""How long open calls may still take when the mediator ends."""
CALLS = 4_096
"""Calls open at once; gRPC refuses more."""
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *MESSAGE_OPTIONS,
    *MANY_PEERS_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_concurrent_streams", 256),
)


class FolderBusy(MediatorError):
    """Another mediator is using the folder."""

    exits_with = BAD_INPUT


class PortTaken(MediatorError):
    """The mediator cannot listen at a port."""

    exits_with = BAD_INPUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The addresses of a mediator that has started."""

    address: str
    """HOST:PORT for sites and users."""
    join_address: str
    """HOST:PORT for sites that join with a token."""
    own: OwnIdentity


class Mediator:
    """One mediator, in the main thread: coordinators die with the thread that starts them."""

    def __init__(self, settings: ServerSettings, *, hosts: Sequence[str] = ()) -> None:
        """`hosts` go into the server's certificate, if this start makes one."""
        self.settings = settings
        self._hosts = tuple(hosts)
        self._undo = AsyncExitStack()
        self.sites: SiteRegistry
        self.runs: Runs
        self.ready: Ready

    async def __aenter__(self) -> Self:
        """Open the folder and the ports. FolderBusy, PortTaken, StoreError, IdentityError."""
        async with AsyncExitStack() as undo:
            self.ready = await self._start(undo)
            self._undo = undo.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._undo.aclose()

    async def _start(self, undo: AsyncExitStack) -> Ready:
        settings = self.settings
        settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings.folder.chmod(0o700)
        undo.callback(os.close, _locked(settings))
        # Before the authority: a start that failed after making it would not report its admin.
        database = Database(await asyncio.to_thread(Store, settings.store_url))
        undo.callback(database.close)
        own = own_identity(settings, self._hosts, time.time())
        authority, credentials = own.authority, own.credentials
        clock = steady_clock()
        blobs = BlobStore(settings.blobs, settings.blobs_bytes)
        await asyncio.to_thread(blobs.clean, now=time.time(), stale_after_s=STALE_S)
        events = EventLog(database, clock)
        attached, accounting = CoordinatorRegistry(), TrafficAccounting(database)
        undo.push_async_callback(events.close)
        undo.callback(accounting.write, last=True)
        sites = SiteRegistry(settings, clock, database, events, attached, accounting, blobs)
        room = DiskRoom(settings.folder, space_of)
        states, folders = RunStates(database, events), RunFolders(settings.runs)
        queue = RunQueue(settings.queue, clock, sites.table, settings.projects)
        supervisor = Supervisor(
            settings, clock, states, folders, events, attached, sites, room, queue
        )
        runs = Runs(settings, clock, database, events, states, folders, supervisor)
        coordinators = Coordinators(settings, supervisor, sites, attached, accounting)
        self.sites, self.runs = sites, runs
        await sites.load()

        local = undo.enter_context(local_address(settings.folder, COORDINATORS_SOCKET))
        inner = grpc.aio.server(options=LOCAL_OPTIONS)
        inner.add_generic_rpc_handlers((handler(COORDINATOR, coordinators),))
        _listen(inner, local, None)
        undo.push_async_callback(inner.stop, 0)
        await inner.start()

        fits = _places(settings)
        limits = ConnectionLimits(
            strangers=fits.strangers,
            of_address=settings.connections_per_address,
            stranger_s=settings.stranger_s,
        )
        watcher = ConnectionWatcher(limits, clock)
        guard = Guard(authority, database, settings, watcher.admitted)
        sessions = SiteSessions(settings, clock, guard, sites, accounting)
        certification = Certification(authority, database, events, watcher.admitted)
        transfers = BlobService(
            blobs,
            BlobGate(guard, sites.orders),
            largest_bytes=settings.largest_blob_bytes,
            settings=TransferSettings(piece_bytes=settings.piece_bytes),
        )
        sites.orders.forget_uploads = transfers.forget
        users = (
            UserRuns(settings, runs, database, events),
            UserSites(settings, clock, sites, accounting, authority, database),
            Administration(authority, database, events, sites, lambda: self.ready.join_address),
            Questions(settings, runs, coordinators, blobs),
        )
        outer = grpc.aio.server(
            options=(*SERVER_OPTIONS, *_limits(settings, fits.connections, settings.idle_s)),
            maximum_concurrent_rpcs=CALLS,
        )
        outer.add_generic_rpc_handlers(
            (
                blob_handlers(transfers),
                guard.handlers(SITE, sessions, only=("Session",)),
                guard.handlers(SITE, certification, only=("Renew",)),
                guard.handlers(USER, *users),
            )
        )
        port = _listen(outer, _at(settings.host, settings.port), server_credentials(credentials))
        undo.push_async_callback(outer.stop, END_S)
        undo.callback(sites.end_all, "the mediator ends")
        entry = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", LARGEST_REQUEST),
                ("grpc.so_reuseport", 0),
                *_limits(settings, fits.strangers, settings.handshake_s),
            ),
            maximum_concurrent_rpcs=256,
        )
        join: Any = grpc.unary_unary_rpc_method_handler(
            certification.join, None, pb.JoinReply.SerializeToString
        )
        entry.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(JOIN.full_name, {"Join": join}),)
        )
        join_port = _listen(
            entry,
            _at(settings.host, settings.join_port),
            server_credentials(credentials, require_clients=False),
        )
        undo.push_async_callback(entry.stop, 0)
        undo.callback(watcher.close)
        watcher.begin((port, join_port))
        undo.push_async_callback(_cancelled, asyncio.create_task(watcher.watch()))
        # Before any session: what sites hold is kept only for runs known to be in progress.
        undo.push_async_callback(supervisor.close)
        await runs.load()
        await outer.start()
        await entry.start()

        async def each_second() -> None:
            coordinators.tell_bytes()
            accounting.write()
            await room.look_and_say(events)
            for each in database.absences():
                lost = {"dropped": each.dropped} if each.dropped else {}
                events.say("store_back", seconds=round(each.seconds, 1), **lost)

        undo.push_async_callback(_cancelled, asyncio.create_task(self._tick(own, each_second)))
        retaining = Retaining(settings.retention, runs, database)
        undo.push_async_callback(_cancelled, asyncio.create_task(retaining.keep()))
        host = settings.host
        if host in ("0.0.0.0", "::"):  # for others, the first name of its certificate
            host = next(iter(credentials.identity.hosts), host)
        return Ready(address=_at(host, port), join_address=_at(host, join_port), own=own)

    async def _tick(self, own: OwnIdentity, each_second: Callable[[], Awaitable[None]]) -> None:
        """Check for silent sites, call `each_second`, and warn about certificates once a day."""
        pause = max(0.02, min(1.0, self.settings.health.heartbeat_s / 4))
        told_at, warned_at = time.monotonic(), -math.inf
        while True:
            if time.monotonic() - warned_at >= DAY_S:
                warned_at = time.monotonic()
                for warning in own.warnings(time.time()):
                    log.warning("%s", warning)
            await asyncio.sleep(pause)
            try:
                self.sites.tick()
                self.runs.supervisor.queue.look()
                if time.monotonic() - told_at >= 1.0:
                    told_at = time.monotonic()
                    await each_second()
            except Exception:
                # The loop must go on: it detects lost sites.
                log.exception("a turn of the mediator's clock failed")


def _places(settings: ServerSettings) -> Places:
    may, wanted = descriptors(), settings.connections
    fits = fitting(may, wanted, settings.strangers)
    if fits.connections < wanted:
        log.warning(
            "this process may have %d descriptors (RLIMIT_NOFILE): %d connections are taken at "
            "once, not %d; a higher hard limit lets more in",
            may,
            fits.connections,
            wanted,
        )
    return fits


def _limits(
    settings: ServerSettings, connections: int, idle_s: float
) -> tuple[tuple[str, int], ...]:
    """Limits that gRPC itself enforces, before any code of this project runs."""
    return (
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.server_handshake_timeout_ms", round(1_000 * settings.handshake_s)),
        ("grpc.max_connection_idle_ms", round(1_000 * idle_s)),
    )


def steady_clock() -> Callable[[], float]:
    """A clock in epoch seconds that never jumps, so setting the clock makes no site silent."""
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset


def _listen(
    server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None
) -> int:
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise PortTaken(
            f"cannot listen at {address}: is it taken, or not an address of this machine?"
        ) from error


def _locked(settings: ServerSettings) -> int:
    """Lock the folder for the life of this process; return the descriptor. FolderBusy."""
    file = os.open(settings.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise FolderBusy(
            f"another mediator works in {settings.folder}: end it, or use another folder"
        ) from None
    return file


def _at(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
