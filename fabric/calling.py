"""Calls the manager over a connection of our own, and through Ray where there is none.

Ray needs 2.4 ms to ask an actor after a pause and 1 ms when it is busy with nothing else; a gRPC
call needs half of that, and every task that is submitted inside a virtual cluster asks. So the
manager's process also listens itself, on a port of Ray's address. Who may ask its actor is told the
port and a token; nobody else is answered. Whatever goes wrong there is asked again through Ray,
which finds the manager wherever it was started again: each of its methods may be called twice.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import pickle
import secrets
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import FabricError, ManagerUnreachable

SERVICE, METHOD = "fedpilot.Manager", "call"
TOKEN = "fedpilot-token"
CLIENT = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),  # whose machine is gone says nothing
    ("grpc.keepalive_timeout_ms", 5_000),
)
SERVER = (
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where the manager listens, and what to say there."""

    target: str
    token: str


class Port:
    """Where the manager listens, beside Ray."""

    def __init__(self, methods: Mapping[str, Callable[..., Awaitable[Any]]]) -> None:
        self._methods = methods
        self._token = secrets.token_hex(32)
        self._server: Any = None

    async def open(self, host: str) -> Address | None:
        """Listen; None where that cannot be, or Ray itself encrypts what it sends."""
        import grpc

        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return None
        self._server = grpc.aio.server(options=SERVER)
        handler: Any = grpc.unary_unary_rpc_method_handler(self._answer)
        service = grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})
        self._server.add_generic_rpc_handlers((service,))
        try:
            port = self._server.add_insecure_port(f"[{host}]:0" if ":" in host else f"{host}:0")
        except RuntimeError:
            return None
        await self._server.start()
        return Address(f"{host}:{port}", self._token)

    async def close(self) -> None:
        """Answer nobody any more."""
        await self._server.stop(None)

    async def _answer(self, request: bytes, context: Any) -> bytes:
        import grpc

        told = dict(context.invocation_metadata()).get(TOKEN, "")
        if not hmac.compare_digest(str(told), self._token):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "that is not the token")
        method, args = pickle.loads(request)
        try:
            return pickle.dumps((await self._methods[method](*args), None))
        except Exception as error:
            return pickle.dumps((None, error))


class Line:
    """A connection to the manager, which is used once it stands."""

    def __init__(self, manager: Any) -> None:
        """Ask where it listens, and wait for nothing."""
        self._asked = manager.address.remote()
        self._lock = threading.Lock()
        self._channel: Any = None
        self._stands: Any = None
        self._call: Any = None
        self._metadata: tuple[tuple[str, str], ...] = ()

    @property
    def up(self) -> bool:
        """Whether calls may be made."""
        with self._lock:
            if self._asked is not None:
                self._dial()
            return self._stands is not None and self._stands.done()

    def _dial(self) -> None:
        import grpc
        import ray
        from ray.exceptions import RayError

        if not ray.wait([self._asked], timeout=0)[0]:
            return
        try:
            address: Address | None = ray.get(self._asked)
        except RayError:
            address = None
        self._asked = None
        if address is not None:
            self._channel = grpc.insecure_channel(address.target, options=CLIENT)
            self._stands = grpc.channel_ready_future(self._channel)
            self._call = self._channel.unary_unary(f"/{SERVICE}/{METHOD}")
            self._metadata = ((TOKEN, address.token),)

    def call(self, method: str, args: Sequence[Any], timeout_s: float) -> Any:
        """An answer; what the manager raised; grpc.RpcError if it was not reached."""
        packed = pickle.dumps((method, tuple(args)))
        answer, error = pickle.loads(self._call(packed, timeout=timeout_s, metadata=self._metadata))
        if error is not None:
            raise error
        return answer

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            if self._stands is not None:
                self._stands.cancel()
            if self._channel is not None:
                self._channel.close()


_lines: dict[str, Line] = {}


def call(manager: Any, method: str, args: Sequence[Any], timeout_s: float) -> Any:
    """Have the manager do something. FabricError, also where it does not answer in time."""
    import grpc

    line = _line_to(manager)
    if line.up:
        try:
            return line.call(method, args, timeout_s)
        except FabricError:
            raise
        except grpc.RpcError as error:
            hang_up(manager)
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise ManagerUnreachable(f"it has not answered within {timeout_s:g} s") from None
        except Exception as error:
            raise FabricError(f"the manager failed: {error!r}") from error
    return _through_ray(manager, method, args, timeout_s)


def _through_ray(manager: Any, method: str, args: Sequence[Any], timeout_s: float) -> Any:
    import ray
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError

    asked = getattr(manager, method).remote(*args)
    try:
        return ray.get(asked, timeout=timeout_s)
    except RayTaskError as error:
        if isinstance(error.cause, FabricError):
            raise error.cause from None
        raise FabricError(f"the manager failed: {error}") from error
    except (GetTimeoutError, RayError) as error:
        raise ManagerUnreachable(brief(str(error))) from error


def brief(text: str) -> str:
    """The first line of what Ray says."""
    return text.strip().partition("\n")[0]


def _line_to(manager: Any) -> Line:
    id = manager._actor_id.hex()
    line = _lines.get(id)
    if line is None:
        line = _lines.setdefault(id, Line(manager))
    return line


def hang_up(manager: Any = None) -> None:
    """Close the connection to a manager, or to all: the next call asks anew where it listens."""
    ids = [*_lines] if manager is None else [manager._actor_id.hex()]
    for id in ids:
        line = _lines.pop(id, None)
        if line is not None:
            with contextlib.suppress(Exception):
                line.close()
