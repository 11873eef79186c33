"""MediatorClient: what a user asks of a mediator, as calls that end: with an answer or an error.

Every call has a deadline. A question that may be asked twice is asked again while the mediator does
not answer, within a budget; so is a stream, which goes on where it was cut, and neither loses nor
repeats anything. Statuses of gRPC become errors of this package in one place, `_error_of`. An
interruption may come at any time: gRPC is never in the main thread, where it would not survive one.
"""

from __future__ import annotations

import json
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NoReturn, Self, TypeVar

import grpc

from fedpilot.fabric.core.text.plain_text import plain_lines

from ..core.rules.site_commands import exit_code_here
from ..errors import (
    BadRequest,
    MediatorError,
    MediatorFailed,
    MediatorUnreachable,
    NoSuchRun,
    NoSuchSite,
    NotPermitted,
    QuestionFailed,
    RequestRefused,
    RunExists,
    SiteUnreachable,
)
from ..identity import Credentials
from ..identity.clock import too_early_for
from ..identity.tls import client_credentials
from ..proto import federation_pb2 as pb
from ..wire.messages import PROTOCOL
from ..wire.payloads import read, write
from ..wire.questions import question_messages, whole_answer
from ..wire.rpc import CHANNEL_OPTIONS, MESSAGE_OPTIONS, USER, Stub
from ..workload import Payload

Document = Mapping[str, Any]
"""A JSON object."""
Value = TypeVar("Value")

ENDED = frozenset({"finished", "failed", "stopped", "interrupted"})
"""Statuses of runs that nobody works on."""
SLOWEST_LINK = 50_000
"""Bytes per second; the deadline of a file grows with its size."""
_MOST_AT_ONCE = 1_000
"""Runs that one answer is asked for."""
_MOST_FILES = 100_000
"""Files of a run; no run has so many."""
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
        "revoke_certificate",
        "list_audit",
    }
)
"""Calls that do no harm when they are made twice: a client trained again has the same bits."""


STOPPING = "stopping"
"""The status of a run whose coordinator has been told to end."""
LOOK_S = 0.2
"""Seconds between two looks at a run that is awaited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """An event, with the number that the mediator gave it."""

    number: int
    event: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A file of a run, as the mediator names it: not to be trusted as a path."""

    path: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a command at a site ended."""

    exit_code: int
    out: str
    err: str


class MediatorClient:
    """One user's connection to one mediator. Its methods raise the errors of this package."""

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        *,
        patience: Patience | None = None,
        sleep: Callable[[float], None] = time.sleep,
        on_cut: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """Connect when first asked; CertificateExpired at once.

        `on_cut` is told why, once, when something that is followed is cut and asked for again.
        """
        credentials.identity.check(time.time())
        self.address = address
        self.identity = credentials.identity
        self._patience = patience or Patience()
        self._sleep = sleep
        self._on_cut = on_cut
        self._channel = _aside(
            lambda: grpc.secure_channel(
                address,
                client_credentials(credentials),
                options=[*CHANNEL_OPTIONS, *MESSAGE_OPTIONS],
            )
        )
        self._stub = Stub(self._channel, USER)

    def close(self) -> None:
        """End the connection; may be called twice."""
        _aside(self._channel.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- runs ---------------------------------------------------------------------------------

    def submit(
        self,
        run: str,
        config_yaml: str,
        *,
        name: str,
        interactive: bool = False,
        code: bytes = b"",
        shared: bool = False,
    ) -> Document:
        """Hand in a run under an id of ours, so that asking twice submits it once. RunExists.

        `code` is an archive of the user's own modules, which the mediator keeps with the run. The
        results of a `shared` one are read by everybody who may read at the mediator.
        """
        request = pb.SubmitRequest(
            protocol=PROTOCOL,
            run=run,
            config_yaml=config_yaml,
            name=name,
            interactive=interactive,
            code=code,
            shared=shared,
        )
        return _document(self._asked("submit", request, run=run).run_json)

    def list_runs(self) -> list[Document]:
        """All runs that the mediator knows, the first submitted first, as `show_run` gives each."""
        return self.newest_runs(sys.maxsize)[0]

    def newest_runs(self, most: int) -> tuple[list[Document], int]:
        """The newest runs, the first submitted first; and how many were submitted before them.

        They come in several answers if they are many.
        """
        found: list[Document] = []
        request, more = pb.ListRunsRequest(), 0
        while len(found) < most:
            request.most = min(most - len(found), _MOST_AT_ONCE)
            reply = self._asked("list_runs", request)
            page, more = [_document(text) for text in reply.run_json], reply.more
            found += page
            if not page or not more:
                break
            request.after = str(page[-1].get("run_id", ""))
        return found[::-1], more

    def show_run(self, run: str) -> Document:
        """What is known of a run. NoSuchRun."""
        return _document(self._asked("show_run", pb.RunRequest(run=run), run=run).run_json)

    def stop_run(self, run: str, *, wait: bool = True) -> Document:
        """Have a run end, with its state kept; with `wait` it can be resumed when this returns.

        A run that still stops after `work_s` seconds is returned as it is then.
        """
        found = _document(self._asked("stop_run", pb.RunRequest(run=run), run=run).run_json)
        waited = 0.0
        while wait and found.get("status") == STOPPING and waited < self._patience.work_s:
            self._sleep(LOOK_S)
            waited += LOOK_S
            found = self.show_run(run)
        return found

    def resume_run(self, run: str) -> Document:
        """Have a run that was stopped or interrupted go on; nothing if it does. RequestRefused."""
        return _document(self._asked("resume_run", pb.RunRequest(run=run), run=run).run_json)

    def remove_run(self, run: str) -> Document:
        """Have a run that has ended forgotten; what it was. RequestRefused if it goes on."""
        return _document(self._asked("remove_run", pb.RunRequest(run=run), run=run).run_json)

    def follow_run(self, run: str, *, after: int = 0, follow: bool = True) -> Iterator[Happening]:
        """A run's events after a number; with `follow` until it ends, over broken connections."""

        def is_over() -> bool:
            return not follow or self.show_run(run).get("status") in ENDED

        return self._events("follow_run", run, after, follow, is_over)

    def run_log(self, run: str, *, follow: bool = False) -> Iterator[str]:
        """What the run's coordinator wrote to stderr, in parts; with `follow` until it ends."""
        printed = 0

        def attempt() -> Iterator[str]:
            nonlocal printed
            seen = 0
            for part in self._streamed("run_log", pb.LogRequest(run=run, follow=follow), run=run):
                new = part.text[max(0, printed - seen) :]
                seen += len(part.text)
                printed = max(printed, seen)
                yield new

        def is_over() -> bool:
            return not follow or self.show_run(run).get("status") in ENDED

        return self._again_when_cut(attempt, is_over, follow=follow)

    def list_files(self, run: str) -> list[RunFile]:
        """The files of a run's folder at the mediator."""
        reply = self._asked("list_files", pb.RunRequest(run=run), run=run)
        if len(reply.files) > _MOST_FILES:
            raise MediatorFailed(f"the mediator lists {len(reply.files)} files of run {run}")
        return [RunFile(path=each.path, size=each.size) for each in reply.files]

    def read_file(self, run: str, file: RunFile, to: BinaryIO) -> None:
        """Write a file's bytes to `to`; MediatorFailed unless they are as many as was said."""
        request = pb.ReadFileRequest(run=run, path=file.path)
        at, timeout_s = 0, self._patience.call_s + file.size / SLOWEST_LINK
        for piece in self._streamed("read_file", request, run=run, timeout_s=timeout_s):
            if piece.offset != at or at + len(piece.data) > file.size:
                raise MediatorFailed(
                    f"{file.path!r} of run {run} should have {file.size} bytes; after {at} came "
                    f"{len(piece.data)} for offset {piece.offset}"
                )
            to.write(piece.data)
            at += len(piece.data)
        if at != file.size:
            raise MediatorFailed(
                f"{file.path!r} of run {run} should have {file.size} bytes, and {at} came"
            )

    def ask_run(self, run: str, question: Payload) -> Payload:
        """Ask a run that is going on about a VirtualNode; QuestionFailed if that fails.

        The tensors of both may be as large as models are.
        """
        with tempfile.TemporaryDirectory(prefix="fedpilot-") as made:
            folder = Path(made)
            header, blob = write(question, folder)
            first = pb.AskRunRequest(run=run, kind=question.kind, header_json=header)
            if blob is not None:
                first.blob.CopyFrom(pb.Blob(digest=blob.digest, size=blob.size))
            tensors, answer = folder / (blob.digest if blob else "question"), folder / "answer"
            timeout_s = self._patience.work_s + self._patience.tensors_s

            def ask() -> pb.AskRunReply:
                call = self._stub.ask_run(question_messages(first, tensors), timeout=timeout_s)
                try:
                    return whole_answer(call, answer)
                finally:
                    call.cancel()

            reply = self._again("ask_run", ask, run=run)
            if reply.WhichOneof("result") != "done":
                raise QuestionFailed(run, reply.failure.kind, reply.failure.message)
            path = answer if reply.done.blob.digest else None
            return read(reply.done.kind, reply.done.header_json, path)

    # -- sites --------------------------------------------------------------------------------

    def list_sites(self) -> list[Document]:
        """All sites that have joined, in the order of their names, without what they declare."""
        return self._sites("")

    def _sites(self, only: str) -> list[Document]:
        reply = self._asked("list_sites", pb.ListSitesRequest(site=only))
        found = [_document(text) for text in reply.site_json]
        return sorted(found, key=lambda site: str(site.get("name")))

    def show_site(self, name: str) -> Document:
        """One of them, with the `data` that it declares; NoSuchSite says which there are."""
        for site in self._sites(name) if name else ():
            if site.get("name") == name:
                return site
        names = ", ".join(str(site.get("name")) for site in self.list_sites())
        there = names or "none; `fedpilot site token NAME` lets one join"
        raise NoSuchSite(f"there is no site {name!r}; there are: {there}")

    def change_site(self, name: str, change: str, *, timeout_s: float = 0.0) -> Document:
        """Cordon, uncordon, drain or remove a site; the site as it is then."""
        request = pb.ChangeSiteRequest(site=name, change=change, timeout_s=timeout_s)
        return _document(self._asked("change_site", request, site=name).site_json)

    def run_at_site(self, site: str, arguments: list[str]) -> Outcome:
        """Run `fedpilot ARGUMENTS`, a command about clusters or jobs, beside a site's agent.

        Its exit code is one of those that commands have: 4 where it was ended at its deadline.
        """
        request = pb.RunAtSiteRequest(site=site, arguments=arguments)
        timeout_s = self._patience.work_s
        reply = self._asked("run_at_site", request, site=site, timeout_s=timeout_s)
        return Outcome(exit_code=exit_code_here(reply.exit_code), out=reply.out, err=reply.err)

    def make_token(self, site: str, *, valid_s: float) -> tuple[str, float]:
        """A token with which a site of that name may join once; and until when, epoch seconds."""
        request = pb.MakeTokenRequest(site=site, valid_s=valid_s)
        reply = self._asked("make_token", request, site=site)
        return reply.token, reply.expires_at

    def revoke_certificate(self, which: str) -> list[str]:
        """Have a serial number, or all of a name, refused from now on; the serial numbers."""
        reply = self._asked("revoke_certificate", pb.RevokeRequest(which=which))
        return list(reply.serials)

    # -- the federation -----------------------------------------------------------------------

    def list_audit(self, last: int) -> list[Document]:
        """The last administrative acts, the latest last."""
        reply = self._asked("list_audit", pb.ListAuditRequest(last=last))
        return [_document(text) for text in reply.entry_json]

    def follow_events(self, *, after: int = 0, follow: bool = False) -> Iterator[Happening]:
        """What happens in the federation, after a number; with `follow` for ever."""
        return self._events("follow_events", "", after, follow, lambda: not follow)

    # -- asking -------------------------------------------------------------------------------

    def _asked(
        self,
        method: str,
        request: Any,
        *,
        run: str = "",
        site: str = "",
        timeout_s: float | None = None,
    ) -> Any:
        """Ask for one message, perhaps again."""
        call, limit_s = getattr(self._stub, method), timeout_s or self._patience.call_s
        return self._again(method, lambda: call(request, timeout=limit_s), run=run, site=site)

    def _again(
        self, method: str, act: Callable[[], Value], *, run: str = "", site: str = ""
    ) -> Value:
        """Ask, and ask again within the budget where that does no harm."""
        deadline = time.monotonic() + self._patience.again_s
        pauses = self._pauses()
        while True:
            try:
                return _aside(act)
            except grpc.RpcError as error:
                raised = self._error_of(error, run=run, site=site)
                pause = next(pauses)
                cut = error.code() in _CUT and isinstance(raised, MediatorUnreachable)
                again = cut and method in _REPEATABLE
                if not again or time.monotonic() + pause > deadline:
                    raise raised from error
                self._sleep(pause)

    def _streamed(
        self, method: str, request: Any, *, run: str = "", timeout_s: float | None = None
    ) -> Iterator[Any]:
        """One attempt at a stream. Without `timeout_s` it ends after a while without an error."""
        begin, limit_s = getattr(self._stub, method), timeout_s or self._patience.stream_s
        call = _aside(lambda: begin(request, timeout=limit_s))
        try:
            while (part := _aside(lambda: next(call, None))) is not None:
                yield part
        except grpc.RpcError as error:
            if timeout_s is not None or error.code() is not _Code.DEADLINE_EXCEEDED:
                raise self._error_of(error, run=run) from error
        finally:
            _aside(call.cancel)

    def _events(
        self, method: str, run: str, after: int, follow: bool, is_over: Callable[[], bool]
    ) -> Iterator[Happening]:
        last = after

        def attempt() -> Iterator[Happening]:
            nonlocal last
            request = pb.FollowRequest(run=run, after=last, follow=follow)
            for event in self._streamed(method, request, run=run):
                if event.number > last:
                    last = event.number
                    yield Happening(number=last, event=_document(event.event_json))

        return self._again_when_cut(attempt, is_over, follow=follow)

    def _again_when_cut(
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
            self._sleep(next(pauses))

    def _pauses(self) -> Iterator[float]:
        pause = self._patience.first_pause_s
        while True:
            yield pause
            pause = min(2 * pause, self._patience.longest_pause_s)

    def _error_of(self, error: grpc.RpcError, *, run: str = "", site: str = "") -> MediatorError:
        """The one place where statuses of gRPC become errors of this package."""
        code, said = error.code(), plain_lines(error.details() or "it gives no reason")[:2_000]
        match code:
            case _Code.UNAVAILABLE if site and said.startswith(f"site {site} "):
                return SiteUnreachable(site, said.partition(": ")[2])
            case _Code.UNAVAILABLE if _of_trust(said):
                early = too_early_for(self.address, time.time())
                return MediatorUnreachable(self.address, early or _cause(said))
            case _Code.UNAVAILABLE:
                return MediatorUnreachable(self.address, _cause(said))
            case _Code.CANCELLED:  # by the mediator: nothing here cancels what it waits for
                return MediatorUnreachable(self.address, "it ended while it was asked")
            case _Code.DEADLINE_EXCEEDED:
                early = too_early_for(self.address, time.time())
                return MediatorUnreachable(self.address, early or "it did not answer in time")
            case _Code.NOT_FOUND:
                return (NoSuchRun if run else NoSuchSite if site else BadRequest)(said)
            case _Code.UNIMPLEMENTED:
                return RequestRefused(
                    f"the mediator at {self.address} does not know this request ({said}): "
                    "upgrade it"
                )
        return _CODES.get(code, MediatorFailed)(said)


def _aside(act: Callable[[], Value]) -> Value:
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


def _cause(said: str) -> str:
    """What gRPC says of a failed connection, without the layers around it."""
    said = said.rpartition("last error: ")[2].removeprefix("UNKNOWN: ")
    if _of_trust(said):
        return (
            f"it and we do not trust each other: {said} (is the address one of its certificate's, "
            "and are the credentials of its own authority?)"
        )
    return said


def _of_trust(said: str) -> bool:
    """Whether a connection failed by who showed what."""
    return "handshak" in said.lower() or "certificate" in said.lower()


def _document(text: str) -> Document:
    """A JSON object that the mediator sent."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MediatorFailed(f"the mediator answered what is no JSON: {text[:80]!r}") from error
    if not isinstance(found, dict):
        raise MediatorFailed(f"the mediator answered what is no JSON object: {text[:80]!r}")
    return found
