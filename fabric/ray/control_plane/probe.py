"""Distinguishes a slow Ray from a missing one, without importing Ray, which would try for minutes.

Ray's control plane is a gRPC server, which greets at once even on a busy machine. A server that
refuses the first frame, or is silent for `SILENT_S`, is no Ray. A server that has greeted may take
as long as the caller allows.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import grpc

from fedpilot.common.host.machine import load

from ...errors import ClusterUnreachable

CHECK_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"
TCP_TIMEOUT_S = 5.0
SILENT_S = 30.0
"""How long a listening server may take to greet."""
TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


def probe(address: str, auth_mode: str, timeout_s: float, silent_s: float = SILENT_S) -> None:
    """Return once the Ray at `host:port` answers; ClusterUnreachable says why it does not."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise ClusterUnreachable(address, "expected host:port of the head's Ray, or 'auto'")
    deadline = time.monotonic() + timeout_s
    try:
        socket.create_connection(
            (host.strip("[]"), int(port)), min(timeout_s, TCP_TIMEOUT_S)
        ).close()
    except (OSError, OverflowError) as error:
        raise ClusterUnreachable(address, f"nothing listens there: {error}") from error
    options = (
        ("grpc.enable_http_proxy", 0),
        ("grpc.min_reconnect_backoff_ms", int(1000 * timeout_s)),  # otherwise it fails after 20 s
    )
    with _channel(address, options) as channel:
        if _answers(channel, address, auth_mode, min(timeout_s, silent_s)):
            return
        try:
            grpc.channel_ready_future(channel).result(timeout=0.1)
        except grpc.FutureTimeoutError:
            raise ClusterUnreachable(
                address,
                f"something listens there, and has said nothing for {min(timeout_s, silent_s):g} "
                "s: no Ray, or one that hangs",
            ) from None
        left = deadline - time.monotonic()
        if left > 0 and _answers(channel, address, auth_mode, left):
            return
    raise ClusterUnreachable(
        address,
        f"it is there, but has not answered within {timeout_s:g} s ({load()} here); it may be "
        "overloaded: wait longer, or look at its machine",
    )


def answers(address: str, auth_mode: str, timeout_s: float) -> bool:
    """Whether the control plane at `host:port` answers now."""
    try:
        probe(address, auth_mode, timeout_s)
    except ClusterUnreachable:
        return False
    return True


def auth_mode_of(given: str | None) -> str:
    """Ray's authentication mode: `given`, or RAY_AUTH_MODE, or `disabled`."""
    return given or os.environ.get("RAY_AUTH_MODE") or "disabled"


def _answers(channel: grpc.Channel, address: str, auth_mode: str, timeout_s: float) -> bool:
    """Whether Ray answers in time; ClusterUnreachable if it is no Ray, or refuses us."""
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(CHECK_ALIVE)
    try:
        call(b"", timeout=timeout_s, metadata=_credentials(auth_mode))
    except grpc.RpcError as error:
        match error.code():
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return False
            case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
                reason = (
                    f"it refuses our token (authentication mode {auth_mode!r}); set "
                    "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to the file with the cluster's "
                    "token"
                )
            case grpc.StatusCode.UNIMPLEMENTED:
                reason = "a gRPC server listens there which is not the control plane of a Ray"
            case _:
                reason = f"what listens there does not answer as Ray does: {error.details()}"
        raise ClusterUnreachable(address, reason) from None
    return True


def _channel(address: str, options: Sequence[tuple[str, int]]) -> grpc.Channel:
    """A channel as Ray would open it, with TLS if Ray's environment says so."""
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return grpc.insecure_channel(address, options=options)
    try:
        authority, key, certificate = (
            Path(os.environ[f"RAY_TLS_{name}"]).read_bytes()
            for name in ("CA_CERT", "SERVER_KEY", "SERVER_CERT")
        )
    except (KeyError, OSError) as error:
        reason = f"RAY_USE_TLS is set, and a file that it needs is missing: {error}"
        raise ClusterUnreachable(address, reason) from error
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    return grpc.secure_channel(address, credentials, options=options)


def _credentials(auth_mode: str) -> tuple[tuple[str, str], ...]:
    """The token, found and formatted as Ray does; empty if there is none."""
    if auth_mode != "token":
        return ()
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        usual = Path.home() / ".ray" / "auth_token"
        file = Path(os.environ.get(TOKEN_FILE_VARIABLE) or usual)
        try:
            token = file.read_text()
        except OSError:
            return ()
    return (("authorization", f"Bearer {token.strip()}"),)
