"""Translates gRPC statuses into the errors of this package."""

from __future__ import annotations

import time
from collections.abc import Mapping

import grpc

from fedpilot.fabric.core.text.plain_text import plain_lines

from ..errors import (
    BadRequest,
    MediatorError,
    MediatorFailed,
    MediatorUnreachable,
    NoSuchRun,
    NoSuchSite,
    NotPermitted,
    RequestRefused,
    RunExists,
    SiteUnreachable,
)
from ..identity.clock import too_early_for

_Code = grpc.StatusCode
_CODES: Mapping[grpc.StatusCode, type[MediatorError]] = {
    _Code.UNAUTHENTICATED: NotPermitted,
    _Code.PERMISSION_DENIED: NotPermitted,
    _Code.ALREADY_EXISTS: RunExists,
    _Code.INVALID_ARGUMENT: BadRequest,
    _Code.OUT_OF_RANGE: BadRequest,
    _Code.FAILED_PRECONDITION: RequestRefused,
    _Code.ABORTED: RequestRefused,
    _Code.RESOURCE_EXHAUSTED: RequestRefused,
}


def error_of(address: str, error: grpc.RpcError, *, run: str = "", site: str = "") -> MediatorError:
    """The error of a failed call; `run` or `site` is what the call was about, if any."""
    code, said = error.code(), plain_lines(error.details() or "it gives no reason")[:2_000]
    match code:
        case _Code.UNAVAILABLE if site and said.startswith(f"site {site} "):
            return SiteUnreachable(site, said.partition(": ")[2])
        case _Code.UNAVAILABLE if _of_trust(said):
            early = too_early_for(address, time.time())
            return MediatorUnreachable(address, early or _cause(said))
        case _Code.UNAVAILABLE:
            return MediatorUnreachable(address, _cause(said))
        case _Code.CANCELLED:  # by the mediator: nothing here cancels a call that it waits for
            return MediatorUnreachable(address, "it ended while it was asked")
        case _Code.DEADLINE_EXCEEDED:
            early = too_early_for(address, time.time())
            return MediatorUnreachable(address, early or "it did not answer in time")
        case _Code.NOT_FOUND:
            return (NoSuchRun if run else NoSuchSite if site else BadRequest)(said)
        case _Code.UNIMPLEMENTED:
            return RequestRefused(
                f"the mediator at {address} does not know this request ({said}): upgrade it"
            )
    return _CODES.get(code, MediatorFailed)(said)


def _cause(said: str) -> str:
    """gRPC's reason of a failed connection, without the layers around it."""
    said = said.rpartition("last error: ")[2].removeprefix("UNKNOWN: ")
    if _of_trust(said):
        return (
            f"TLS failed: {said} (is the address one of its certificate's, "
            "and are the credentials of its own authority?)"
        )
    return said


def _of_trust(said: str) -> bool:
    """Whether a connection failed by its certificates."""
    return "handshak" in said.lower() or "certificate" in said.lower()
