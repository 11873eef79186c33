"""RetryingStub: calls of the mediator with deadlines, made again where a broken link cut them.

A question that may be asked twice is asked again while the mediator does not answer, within a
budget; so is a stream. An interruption may come at any time: gRPC is never in the main thread,
where it would not survive one.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar

import grpc

from ..errors import MediatorUnreachable
from ..identity import Credentials
from ..identity.tls import client_credentials
from ..wire.rpc import CHANNEL_OPTIONS, MESSAGE_OPTIONS, USER, Stub
from .status_errors import error_of

Value = TypeVar("Value")

_CUT = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
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
"""Calls that do no harm when they are made twice: a client trained again has the same bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTimeouts:
    """How long a client waits, in seconds."""

    call_s: float = 30.0
    """For the answer to a question."""
    work_s: float = 600.0
    """For an answer that needs work: a VirtualNode's, a command's at a site."""
    tensors_s: float = 3_600.0
    """For its tensors to come through, beside that; a link that is cut is noticed before."""
    again_s: float = 5.0
    """So long a question is asked again while the mediator cannot be reached."""
    cut_s: float = 600.0
    """So long whoever follows something goes on trying while the mediator cannot be reached."""
    stream_s: float = 300.0
    """Then a stream is asked for anew: a mediator that is gone without a word is noticed."""
    first_pause_s: float = 0.2
    longest_pause_s: float = 2.0


class RetryingStub:
    """The calls of UserService at one mediator; they raise the errors of this package."""

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        *,
        patience: ClientTimeouts,
        on_cut: Callable[[str], None],
    ) -> None:
        """Connect when first asked.

        `on_cut` is told why, once, when something that is followed is cut and asked for again.
        """
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
        """Ask for one message, perhaps again."""
        call, limit_s = getattr(self.stub, method), timeout_s or self._patience.call_s
        return self.again(method, lambda: call(request, timeout=limit_s), run=run, site=site)

    def again(
        self, method: str, act: Callable[[], Value], *, run: str = "", site: str = ""
    ) -> Value:
        """Ask, and ask again within the budget where that does no harm."""
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
        """One attempt at a stream. Without `timeout_s` it ends after a while without an error."""
        begin, limit_s = getattr(self.stub, method), timeout_s or self._patience.stream_s
        call = uninterrupted(lambda: begin(request, timeout=limit_s))
        try:
            while (part := uninterrupted(lambda: next(call, None))) is not None:
                yield part
        except grpc.RpcError as error:
            if timeout_s is not None or error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise error_of(self._address, error, run=run) from error
        finally:
            uninterrupted(call.cancel)

    def again_when_cut(
        self, attempt: Callable[[], Iterator[Any]], is_over: Callable[[], bool], *, follow: bool
    ) -> Iterator[Any]:
        """Attempts, one after another, until one ends and it is over. MediatorUnreachable."""
        budget_s = self._patience.again_s
        if follow:
            is_over()  # who cannot be reached at all is not waited for as one that was lost
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
    """Do it where no signal interrupts it; only the waiting for it can be interrupted."""
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
