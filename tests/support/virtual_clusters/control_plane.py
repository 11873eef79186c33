"""What answers as the control plane of a Ray does, and is none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from fedpilot.fabric.ray.control_plane.probe import CHECK_ALIVE

PATIENCE_S = 60.0


class ControlPlane(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers as Ray's does, once it may, whoever has the token."""

    def __init__(self, token: str = "", method: str = CHECK_ALIVE) -> None:
        self._token, self._method = token, method
        self.may = threading.Event()

    def service(self, details: Any) -> Any:
        if details.method != self._method:
            return None
        return grpc.unary_unary_rpc_method_handler(self._alive)

    def _alive(self, request: bytes, context: Any) -> bytes:
        given = dict(context.invocation_metadata()).get("authorization", "")
        if self._token and given != f"Bearer {self._token}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
        self.may.wait(PATIENCE_S)
        return b""


@contextmanager
def serving(plane: ControlPlane) -> Iterator[str]:
    """The address of a control plane, which ends with the block."""
    server = grpc.server(ThreadPoolExecutor(2), handlers=[plane])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        plane.may.set()
        server.stop(0).wait()
