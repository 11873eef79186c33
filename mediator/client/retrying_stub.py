"""RetryingStub: calls to the mediator with deadlines, retried after a broken link.

Idempotent calls and streams are retried while the mediator does not answer, within a budget. gRPC
never runs in the main thread: it would not survive a KeyboardInterrupt there.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar

import grpc

from fedpilot.common.text.plain_text import plain_lines

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
from ..identity import Credentials
from ..identity.clock import too_early_for
from ..identity.tls import client_credentials
from ..wire.rpc import CHANNEL_OPTIONS, MESSAGE_OPTIONS, USER, Stub

Value = TypeVar("Value")

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
_CUT = frozenset({_Code.UNAVAILABLE, _Code.CANCELLED})
_REPEATABLE = frozenset(
    {
        "submit",
        "list_runs",
        "show_run",
        "stop_run",
        "resume_run",
        "list_files",
        "ask_run",
        "list_sites",
        "change_site",
        "list_audit",
    }
)
"""Idempotent calls. `ask_run` is one: training a client again gives the same bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTimeouts:
    """How long a client waits, in seconds."""

    call_s: float = 30.0
    """For an answer."""
    work_s: float = 600.0
    """For an answer that needs work by a VirtualNode or a command at a site."""
    tensors_s: float = 3_600.0
    """In addition, for the tensors of an answer; a cut link is noticed earlier."""
    again_s: float = 5.0
    """How long a call is retried while the mediator cannot be reached."""
    cut_s: float = 600.0
    """How long a followed stream is retried while the mediator cannot be reached."""
    stream_s: float = 300.0
    """How long until a stream is reopened, to notice a vanished mediator."""
    first_pause_s: float = 0.2
    longest_pause_s: float = 2.0


class RetryingStub:
    """The calls of UserService at one mediator; they raise this package's errors."""

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        *,
        patience: ClientTimeouts,
        on_cut: Callable[[str], None],
    ) -> None:
        """Connect at the first call; `on_cut` as for MediatorClient."""
        self._address = address
        self._patience = patience
        self._on_cut = on_cut
        self._channel = uninterrupted(
            lambda: grpc.secure_channel(
                address,
                client_credentials(credentials),
                options=[*CHANNEL_OPTIONS, *MESSAGE_OPTIONS],
            )
        )
        self.stub = Stub(self._channel, USER)

    def close(self) -> None:
        """End the connection; may be called twice."""
        uninterrupted(self._channel.close)

    def ask(
        self,
        method: str,
        request: Any,
        *,
        run: str = "",
        site: str = "",
        timeout_s: float | None = None,
    ) -> Any:
        """Make a call with one answer, with the retries of `again`."""
        call, limit_s = getattr(self.stub, method), timeout_s or self._patience.call_s
        return self.again(method, lambda: call(request, timeout=limit_s), run=run, site=site)

    def again(
        self, method: str, act: Callable[[], Value], *, run: str = "", site: str = ""
    ) -> Value:
        """Make a call, and retry it within the budget if it is idempotent."""
        deadline = time.monotonic() + self._patience.again_s
        pauses = self._pauses()
        while True:
            try:
                return uninterrupted(act)
            except grpc.RpcError as error:
                raised = error_of(self._address, error, run=run, site=site)
                pause = next(pauses)
                cut = error.code() in _CUT and isinstance(raised, MediatorUnreachable)
                again = cut and method in _REPEATABLE
                if not again or time.monotonic() + pause > deadline:
                    raise raised from error
                time.sleep(pause)

    def stream(
        self, method: str, request: Any, *, run: str = "", timeout_s: float | None = None
    ) -> Iterator[Any]:
        """Attempt a stream once; without `timeout_s` it ends after `stream_s` without an error."""
        begin, limit_s = getattr(self.stub, method), timeout_s or self._patience.stream_s
        call = uninterrupted(lambda: begin(request, timeout=limit_s))
        try:
            while (part := uninterrupted(lambda: next(call, None))) is not None:
                yield part
        except grpc.RpcError as error:
            if timeout_s is not None or error.code() is not _Code.DEADLINE_EXCEEDED:
                raise error_of(self._address, error, run=run) from error
        finally:
            uninterrupted(call.cancel)

    def again_when_cut(
        self, attempt: Callable[[], Iterator[Any]], is_over: Callable[[], bool], *, follow: bool
    ) -> Iterator[Any]:
        """Yield the parts of attempts until one ends and `is_over()`. MediatorUnreachable."""
        budget_s = self._patience.again_s
        if follow:
            is_over()  # raises at once if the mediator was never reached
            budget_s = self._patience.cut_s
        heard_at, pauses, told = time.monotonic(), self._pauses(), False
        while True:
            try:
                for part in attempt():
                    heard_at, pauses, told = time.monotonic(), self._pauses(), False
                    yield part
                if is_over():
                    return
                heard_at = time.monotonic()
            except MediatorUnreachable as error:
                if time.monotonic() - heard_at > budget_s:
                    raise
                if not told:
                    self._on_cut(error.reason)
                    told = True
            time.sleep(next(pauses))

    def _pauses(self) -> Iterator[float]:
        pause = self._patience.first_pause_s
        while True:
            yield pause
            pause = min(2 * pause, self._patience.longest_pause_s)


def uninterrupted(act: Callable[[], Value]) -> Value:
    """Act in a thread that no signal interrupts; a signal only interrupts the wait for it."""
    if threading.current_thread() is not threading.main_thread():
        return act()
    done: queue.SimpleQueue[Callable[[], Value]] = queue.SimpleQueue()

    def work() -> None:
        try:
            value = act()
        except BaseException as error:
            done.put(partial(_raise, error))
        else:
            done.put(lambda: value)

    threading.Thread(target=work, name="asks-mediator", daemon=True).start()
    return done.get()()


def _raise(error: BaseException) -> NoReturn:
    raise error


def error_of(address: str, error: grpc.RpcError, *, run: str = "", site: str = "") -> MediatorError:
    """Make the error of a failed call, which was about `run` or `site`, if given."""
    code, said = error.code(), plain_lines(error.details() or "it gives no reason")[:2_000]
    match code:
        case _Code.UNAVAILABLE if site and said.startswith(f"site {site} "):
            return SiteUnreachable(site, said.partition(": ")[2])
        case _Code.UNAVAILABLE if _of_trust(said):
            early = too_early_for(address, time.time())
            return MediatorUnreachable(address, early or _cause(said))
        case _Code.UNAVAILABLE:
            return MediatorUnreachable(address, _cause(said))
        case _Code.CANCELLED:  # by the mediator: this side never cancels a call it waits for
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
    said = said.rpartition("last error: ")[2].removeprefix("UNKNOWN: ")
    if _of_trust(said):
        return (
            f"TLS failed: {said} (is the address one of its certificate's, "
            "and are the credentials of its own authority?)"
        )
    return said


def _of_trust(said: str) -> bool:
    return "handshak" in said.lower() or "certificate" in said.lower()
