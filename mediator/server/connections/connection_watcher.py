"""ConnectionWatcher: closes the connections to a mediator's ports that exceed its limits.

gRPC itself accepts connections and reads their bytes. Twice a second the watcher examines the
sockets of this process and shuts down those that `core/connection_limits.py` selects. Linux reports
connections that ended in between, with their peers (`sock_diag`); other systems do not.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import stat
import struct
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...core.connection_limits import (
    ConnectionLimits,
    OpenConnection,
    PeerAddress,
    TurnedAway,
    Why,
    peer_named,
    plain_address,
    to_close,
)

log = logging.getLogger(__name__)

LOOK_S = 0.5
LINE_S = 60.0
"""The shortest time between two log lines about strangers."""
FORGET_S = 60.0
"""How long an admitted call is remembered after its connection was last seen."""
MOST_DESCRIPTORS = 1 << 16
"""A bound, since some programs loop over all descriptors that they may have."""
FOLDER = "/proc/self/fd"


def raise_descriptors() -> int:
    """Raise the limit on descriptors as far as the system permits; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return descriptors()


def descriptors() -> int:
    """The limit on this process's descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


@dataclass(frozen=True, slots=True)
class _Socket:
    inode: int
    peer: PeerAddress | None
    """None if it is not a connection to the watched ports."""
    since: float


class ConnectionWatcher:
    """Watches the connections of one mediator, within one event loop."""

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._clock = clock
        self._ports: frozenset[int] = frozenset()
        self._sockets: dict[int, _Socket] = {}
        """All sockets of this process, by descriptor."""
        self._known: dict[PeerAddress, float] = {}
        """Connections with an admitted call, and when they were last seen."""
        self._ended: list[PeerAddress] = []
        self._turned_away = TurnedAway()
        self._shut_down: dict[PeerAddress, float] = {}
        """When connections were shut down; their ends are counted already."""
        self._said_at = clock() - LINE_S
        self._kernel: socket.socket | None = None

    # -- facts that others report -----------------------------------------------------------------

    def admitted(self, peer: str) -> None:
        """Record that a call was admitted from this peer, as gRPC names it."""
        if (found := peer_named(peer)) is not None:
            self._known[found] = self._clock()

    def begin(self, ports: Collection[int]) -> None:
        """Watch these ports from now on."""
        self._ports = frozenset(ports)
        try:
            self._kernel = _kernel_tells()
        except OSError as error:
            log.info("strangers that leave at once are not named: %s", error)
            return
        asyncio.get_running_loop().add_reader(self._kernel, self._hear, self._kernel)

    def close(self) -> None:
        """Stop watching, and log the remaining counts."""
        if self._kernel is not None:
            self._hear(self._kernel)
            asyncio.get_running_loop().remove_reader(self._kernel)
            self._kernel.close()
            self._kernel = None
        self._count_ended()
        self._say(self._clock())

    def _hear(self, kernel: socket.socket) -> None:
        for _ in range(1_000):
            try:
                data = kernel.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                continue  # the kernel's buffer has overflowed
            self._ended += [peer for port, peer in ended_in(data) if port in self._ports]

    # -- looking ----------------------------------------------------------------------------------

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self.look()
            except OSError as error:
                log.warning("connections cannot be looked at: %s", error)
                await asyncio.sleep(LINE_S)

    def look(self) -> None:
        """Close the connections that exceed the limits; log them every LINE_S seconds."""
        now = self._clock()
        self._count_ended()
        self._see(now)
        connections = {
            OpenConnection(each.peer, each.since, each.peer in self._known): descriptor
            for descriptor, each in self._sockets.items()
            if each.peer is not None
        }
        for connection, why in to_close(connections, now, self.limits):
            if self._shut(connections[connection]):
                self._turned_away.count(connection.peer.address, why)
                self._shut_down[connection.peer] = now
        self._forget(now)
        if now - self._said_at >= LINE_S:
            self._say(now)

    def _say(self, now: float) -> None:
        if line := self._turned_away.line(min(LINE_S, now - self._said_at)):
            log.warning("%s", line)
            self._said_at = now

    def _count_ended(self) -> None:
        """Count connections that ended since the last look without an admitted call."""
        ended, self._ended = self._ended, []
        for peer in ended:
            shut_down, known = self._shut_down.pop(peer, None), self._known.pop(peer, None)
            if shut_down is None and known is None:
                self._turned_away.count(peer.address, Why.LEFT)

    def _see(self, now: float) -> None:
        """Find the open sockets; examine only new inodes."""
        sockets: dict[int, _Socket] = {}
        for name in os.listdir(FOLDER):
            descriptor = int(name)
            try:
                found = os.fstat(descriptor)
            except OSError:
                continue
            if stat.S_ISSOCK(found.st_mode):
                seen = self._sockets.get(descriptor)
                if seen is None or seen.inode != found.st_ino:
                    seen = _Socket(found.st_ino, self._peer_of(descriptor), now)
                sockets[descriptor] = seen
        self._sockets = sockets

    def _peer_of(self, descriptor: int) -> PeerAddress | None:
        """The peer of a connection to a watched port; None for any other socket."""
        try:
            with _copy(descriptor) as copy:
                if copy.family not in (socket.AF_INET, socket.AF_INET6):
                    return None
                if copy.getsockname()[1] not in self._ports:
                    return None
                host, port, *_ = copy.getpeername()
                return PeerAddress(plain_address(host), port)
        except (OSError, ValueError):
            return None  # it listens, or has just closed

    def _shut(self, descriptor: int) -> bool:
        """Shut down the connection seen under a descriptor, unless the descriptor was reused."""
        seen = self._sockets.pop(descriptor)
        with suppress(OSError), _copy(descriptor) as copy:
            if os.fstat(copy.fileno()).st_ino == seen.inode:
                copy.shutdown(socket.SHUT_RDWR)
                return True
        return False

    def _forget(self, now: float) -> None:
        for each in self._sockets.values():
            if each.peer is not None and each.peer in self._known:
                self._known[each.peer] = now
        for remembered in (self._known, self._shut_down):
            for peer in [peer for peer, at in remembered.items() if now - at > FORGET_S]:
                del remembered[peer]


def _copy(descriptor: int) -> socket.socket:
    """Duplicate the descriptor, so that gRPC cannot close it meanwhile."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


# -- reports of the kernel ------------------------------------------------------------------------

_SOCK_DIAG, _SOL_NETLINK, _ADD_MEMBERSHIP = 4, 270, 1
_TCP_DESTROYED, _TCP6_DESTROYED = 1, 3
_HEAD = struct.Struct("=IHHII")
"""A netlink message's length, kind, flags, number and sender."""
_IDS = struct.Struct("!4xHH16s16s")
"""An `inet_diag_msg` without family, state and timers: ports and addresses, local first."""
_DIAG_BY_FAMILY = 20


def _kernel_tells() -> socket.socket:
    """Open a socket on which Linux reports TCP connections that end; OSError elsewhere."""
    family: Any = getattr(socket, "AF_NETLINK", None)
    if family is None:
        raise OSError("this system has no sock_diag")
    kernel = socket.socket(family, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG)
    try:
        kernel.bind((0, 0))
        for group in (_TCP_DESTROYED, _TCP6_DESTROYED):
            kernel.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        kernel.setblocking(False)
    except OSError:
        kernel.close()
        raise
    return kernel


def ended_in(data: bytes) -> list[tuple[int, PeerAddress]]:
    """Parse the kernel's bytes: the local port and the peer of each connection that ended."""
    found, at = [], 0
    while at + _HEAD.size + _IDS.size <= len(data):
        length, kind, *_ = _HEAD.unpack_from(data, at)
        if length < _HEAD.size:
            break
        if kind == _DIAG_BY_FAMILY:
            family = data[at + _HEAD.size]
            mine, theirs, _, address = _IDS.unpack_from(data, at + _HEAD.size)
            if theirs and family == socket.AF_INET:
                found.append((mine, PeerAddress(socket.inet_ntop(family, address[:4]), theirs)))
            elif theirs and family == socket.AF_INET6:
                text = plain_address(socket.inet_ntop(family, address))
                found.append((mine, PeerAddress(text, theirs)))
        at += (length + 3) & ~3
    return found
