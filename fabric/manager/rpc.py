"""Calls the manager over its own socket, and through Ray where that is impossible.

The manager listens on a port of its machine, which is much faster than Ray (decision 16); its actor
gives callers the port and a token. A failed call is repeated through Ray, which finds a restarted
manager, so each method must tolerate being called twice. The actor may get no new methods
(`actor.py`), so the calls of `PORT_ONLY` exist at the port alone.

A message is its length and a pickle, not gRPC, which does not survive the host processes' forks.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import pickle
import secrets
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.pickle_names import travels
from ..errors import (
    CallUnavailable,
    FabricError,
    ManagerAway,
    ManagerGone,
    ManagerUnreachable,
)
from ..ray.machine_check import not_installed

log = logging.getLogger(__name__)

TOKEN_BYTES = 32
GREETING_S = 10.0
"""How long a caller may take to send the token."""
CONNECT_S = 0.5
"""After this time a port counts as out of reach, and all calls go through Ray."""
LENGTH = struct.Struct("!Q")
LONGEST = 2**30
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Detects a peer whose machine is gone, where the system supports it (s, s, count)."""
PORT_ONLY = frozenset({"apply_queues", "queues", "queue_samples", "leave"})
"""The calls that the actor has no methods for."""


@travels
@dataclass(frozen=True, slots=True)
class Address:
    """Where the manager listens, and the token that it expects."""

    host: str
    port: int
    token: bytes


class Port:
    """The manager's port, beside Ray."""

    def __init__(self, methods: Mapping[str, Callable[..., Awaitable[Any]]]) -> None:
        self._methods = methods
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self, host: str) -> Address | None:
        """Listen; None if that is impossible, or if Ray itself encrypts its traffic."""
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return None
        try:
            self._server = await asyncio.start_server(self._serve, host, 0)
        except OSError:
            return None
        return Address(host, self._server.sockets[0].getsockname()[1], self._token)

    def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            self._server.close()
        for writer in [*self._writers]:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection, one call after the other."""
        self._writers.add(writer)
        try:
            async with asyncio.timeout(GREETING_S):
                told = await reader.readexactly(TOKEN_BYTES)
            while hmac.compare_digest(told, self._token):
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                if length > LONGEST:
                    break
                answer = await self._answer(await reader.readexactly(length))
                writer.write(LENGTH.pack(len(answer)) + answer)
                await writer.drain()
        except (OSError, EOFError, TimeoutError):
            pass  # the caller has hung up, or never sent the token
        except Exception:
            log.exception("a call could not be answered here; it is made again through Ray")
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, request: bytes) -> bytes:
        method, args = pickle.loads(request)
        try:
            return pickle.dumps((await self._methods[method](*args), None))
        except Exception as error:
            return pickle.dumps((None, error))


class ManagerConnections:
    """This process's connections to a manager, one for each concurrent call."""

    def __init__(self, manager: Any) -> None:
        """Ask the manager for its address, without waiting for the answer."""
        self._manager = manager
        self._asked = manager.address.remote()
        self._address: Address | None = None
        self._idle: list[socket.socket] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def up(self) -> bool:
        """Whether calls may be made."""
        import ray
        from ray.exceptions import ActorUnavailableError, RayError

        if self._asked is not None:
            with self._lock:
                if self._asked is not None and ray.wait([self._asked], timeout=0)[0]:
                    asked, self._asked = self._asked, None
                    try:
                        self._address = ray.get(asked)
                    except RayError as error:
                        _without_frames(error)
                        if isinstance(error, ActorUnavailableError):  # it was restarting
                            self._asked = self._manager.address.remote()
        return self._address is not None and self._pid == os.getpid()

    def use(self, address: Address) -> None:
        """Make calls to this address from now on."""
        with self._lock:
            self._asked, self._address = None, address
            self._idle.clear()  # in a fork, they are its parent's
            self._pid = os.getpid()

    def call(
        self, method: str, args: Sequence[Any], timeout_s: float
    ) -> tuple[Any, Exception | None]:
        """The answer, or the manager's error. TimeoutError; OSError, EOFError if it is gone."""
        end = time.monotonic() + timeout_s
        packed = pickle.dumps((method, tuple(args)))
        line = self._take()
        try:
            line.settimeout(timeout_s)
            line.sendall(LENGTH.pack(len(packed)) + packed)
            (length,) = LENGTH.unpack(_exactly(line, LENGTH.size, end))
            found: tuple[Any, Exception | None] = pickle.loads(_exactly(line, length, end))
        except BaseException:  # the next bytes would be the answer to this call
            line.close()
            raise
        with self._lock:
            self._idle.append(line)
        return found

    def _take(self) -> socket.socket:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        assert self._address is not None
        to = self._address
        try:
            line = socket.create_connection((to.host, to.port), timeout=CONNECT_S)
        except TimeoutError as error:  # something blocks the port, and will do so again
            self.close()
            raise _OutOfReach from error
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        line.sendall(to.token)
        return line

    def close(self) -> None:
        with self._lock:
            self._address = self._asked = None
            for line in self._idle:
                line.close()
            self._idle.clear()


class _OutOfReach(Exception):
    """This machine cannot connect to the port."""


def _exactly(line: socket.socket, size: int, end: float) -> bytes:
    found = bytearray()
    while len(found) < size:
        line.settimeout(max(0.001, end - time.monotonic()))
        part = line.recv(min(size - len(found), 2**20))
        if not part:
            raise EOFError("the manager has hung up")
        found += part
    return bytes(found)


_lines: dict[tuple[str, str], ManagerConnections] = {}


def call(manager: Any, method: str, args: Sequence[Any], timeout_s: float) -> Any:
    """Call a method of the manager. FabricError, also if it does not answer in time.

    ManagerAway while Ray restarts this actor; ManagerGone if it is dead for good, and another may
    have its name. NotInstalled if its machine lacks fedpilot.
    """
    import ray

    # This process's current id at Ray, and the manager's actor.
    key = ray.get_runtime_context().get_worker_id(), manager._actor_id.hex()
    if key not in _lines:
        for other in [each for each in _lines if each[0] != key[0]]:
            _close(other)  # it belongs to an earlier connection to Ray
    line = _lines.get(key) or _lines.setdefault(key, ManagerConnections(manager))
    only = method in PORT_ONLY
    if only and not line.up:
        end = time.monotonic() + timeout_s
        line.use(_address(manager, method, timeout_s))
        timeout_s = max(0.0, end - time.monotonic())
    if line.up:
        try:
            answer, error = line.call(method, args, timeout_s)
        except TimeoutError:
            raise ManagerUnreachable(f"it has not answered within {timeout_s:g} s") from None
        except _OutOfReach:
            if only:
                raise CallUnavailable(method, OUT_OF_REACH) from None
        except (EOFError, OSError):
            _close(key)
            if only:
                raise ManagerAway("its port was closed") from None
        else:
            if error is None:
                return answer
            try:
                if only and isinstance(error, KeyError) and error.args == (method,):
                    raise CallUnavailable(method, OLDER)
                if isinstance(error, FabricError):
                    raise error
                raise FabricError(f"the manager failed: {error!r}") from error
            finally:
                del error  # its traceback holds this frame, a reference cycle
    return _through_ray(manager, method, args, timeout_s)


OUT_OF_REACH = (
    "its port cannot be reached from this machine; run the command on the machine of Ray's head, "
    "or open the ports between the machines"
)
NO_PORT = (
    "it has no port, since Ray encrypts its traffic (RAY_USE_TLS) or the system refused one; "
    "queues need a Ray cluster without that"
)
OLDER = (
    "its version of fedpilot is older; install this version on the machine of Ray's head and "
    "restart Ray there"
)


def _address(manager: Any, method: str, timeout_s: float) -> Address:
    """Where the manager listens, for a call that Ray cannot carry. CallUnavailable."""
    found: Address | None = _through_ray(manager, "address", (), timeout_s)
    if found is None:
        raise CallUnavailable(method, NO_PORT)
    return found


def _through_ray(manager: Any, method: str, args: Sequence[Any], timeout_s: float) -> Any:
    import ray
    from ray.exceptions import RayError

    asked = getattr(manager, method).remote(*args)
    try:
        return ray.get(asked, timeout=timeout_s)
    except RayError as error:
        _without_frames(error)
        failure = _explained(error)
    try:
        raise failure  # outside the handler, so that Ray's error is not its context
    finally:
        del failure


def _without_frames(error: BaseException) -> None:
    """Break the cycle between an error of `ray.get` and its frame, which keeps callers' objects."""
    error.__traceback__ = None


def _explained(error: Exception) -> FabricError:
    from ray.exceptions import (
        ActorDiedError,
        ActorUnavailableError,
        ActorUnschedulableError,
        RayTaskError,
    )

    first_line = str(error).strip().partition("\n")[0]
    found: FabricError
    match error:
        case RayTaskError(cause=FabricError() as cause):
            return cause
        case RayTaskError():
            found = FabricError(f"the manager failed: {error}")
        case ActorDiedError() | ActorUnschedulableError():
            found = not_installed(str(error)) or ManagerGone(first_line)
        case ActorUnavailableError():
            found = ManagerAway(first_line)
        case _:
            found = ManagerUnreachable(first_line)
    found.__cause__ = error
    return found


def _close(key: tuple[str, str]) -> None:
    line = _lines.pop(key, None)
    if line is not None:
        line.close()


def hang_up() -> None:
    """Close all connections."""
    for key in [*_lines]:
        _close(key)
