"""MediatorClient: a user's calls to a mediator; each ends with an answer or an error.

A stream that is cut resumes where it ended, without loss or repetition.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from ..core.rules.site_commands import exit_code_here
from ..core.run_queue import RunAsk
from ..errors import MediatorFailed, NoSuchSite, QuestionFailed
from ..identity import Credentials
from ..proto import federation_pb2 as pb
from ..wire.messages import PROTOCOL
from ..wire.payloads import read, write
from ..wire.questions import question_messages, whole_answer
from ..workload import Payload
from .retrying_stub import ClientTimeouts, RetryingStub

Document = Mapping[str, Any]

ENDED = frozenset({"finished", "failed", "stopped", "interrupted"})
SLOWEST_LINK = 50_000
"""Bytes per second, for the deadline of a file."""
_MOST_AT_ONCE = 1_000
"""The most runs to request in one call."""
_MOST_FILES = 100_000
"""An upper bound on the files of a run."""
STOPPING = "stopping"
"""The status of a run whose coordinator has been told to end."""
LOOK_S = 0.2
"""Seconds between two looks at a stopping run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """An event, with the mediator's number for it."""

    number: int
    event: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A file of a run. The mediator chose `path`, so it is not safe to use here."""

    path: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteCommandOutcome:
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
        patience: ClientTimeouts | None = None,
        on_cut: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """Connect at the first call; raise CertificateExpired at once.

        `on_cut` is called once, with the reason, when a followed stream is cut and resumed.
        """
        credentials.identity.check(time.time())
        self.address = address
        self.identity = credentials.identity
        self._patience = patience or ClientTimeouts()
        self._calls = RetryingStub(address, credentials, patience=self._patience, on_cut=on_cut)

    def close(self) -> None:
        """End the connection; may be called twice."""
        self._calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
        priority_class: str = "",
        ask: RunAsk | None = None,
    ) -> Document:
        """Submit a run under the caller's id, once even if repeated. RunExists.

        `code` is an archive of the user's modules, which the mediator keeps with the run. All users
        may read the results of a `shared` run. By its priority class and what it asks of its sites,
        the run waits in line.
        """
        request = pb.SubmitRequest(
            protocol=PROTOCOL,
            run=run,
            config_yaml=config_yaml,
            name=name,
            interactive=interactive,
            code=code,
            shared=shared,
            priority_class=priority_class,
            ask_json="" if ask is None else json.dumps(ask.to_json()),
        )
        return _document(self._calls.ask("submit", request, run=run).run_json)

    def list_runs(self) -> list[Document]:
        """All runs, in order of submission."""
        return self.newest_runs(sys.maxsize)[0]

    def newest_runs(self, most: int) -> tuple[list[Document], int]:
        """The newest runs, in order of submission, and the number of older ones."""
        found: list[Document] = []
        request, more = pb.ListRunsRequest(), 0
        while len(found) < most:
            request.most = min(most - len(found), _MOST_AT_ONCE)
            reply = self._calls.ask("list_runs", request)
            page, more = [_document(text) for text in reply.run_json], reply.more
            found += page
            if not page or not more:
                break
            request.after = str(page[-1].get("run_id", ""))
        return found[::-1], more

    def show_run(self, run: str) -> Document:
        """Show a run. NoSuchRun."""
        return _document(self._calls.ask("show_run", pb.RunRequest(run=run), run=run).run_json)

    def stop_run(self, run: str, *, wait: bool = True) -> Document:
        """Stop a run so that it can be resumed; with `wait`, return once it has stopped.

        After `work_s` seconds, return the run as it is.
        """
        found = _document(self._calls.ask("stop_run", pb.RunRequest(run=run), run=run).run_json)
        waited = 0.0
        while wait and found.get("status") == STOPPING and waited < self._patience.work_s:
            time.sleep(LOOK_S)
            waited += LOOK_S
            found = self.show_run(run)
        return found

    def resume_run(self, run: str) -> Document:
        """Resume a run that ended unfinished; one in progress stays as it is. RequestRefused."""
        return _document(self._calls.ask("resume_run", pb.RunRequest(run=run), run=run).run_json)

    def remove_run(self, run: str) -> Document:
        """Remove a run that has ended; return its last state. RequestRefused while in progress."""
        return _document(self._calls.ask("remove_run", pb.RunRequest(run=run), run=run).run_json)

    def follow_run(self, run: str, *, after: int = 0, follow: bool = True) -> Iterator[Happening]:
        """Yield a run's events after a number; with `follow`, until it ends, over broken links."""
        return self._events("follow_run", run, after, follow, self._is_over(run, follow))

    def _is_over(self, run: str, follow: bool) -> Callable[[], bool]:
        return lambda: not follow or self.show_run(run).get("status") in ENDED

    def run_log(self, run: str, *, follow: bool = False) -> Iterator[str]:
        """Yield the output of a run's coordinators; with `follow`, until the run ends."""
        printed = 0

        def attempt() -> Iterator[str]:
            nonlocal printed
            seen, request = 0, pb.LogRequest(run=run, follow=follow)
            for part in self._calls.stream("run_log", request, run=run):
                new = part.text[max(0, printed - seen) :]
                seen += len(part.text)
                printed = max(printed, seen)
                yield new

        return self._calls.again_when_cut(attempt, self._is_over(run, follow), follow=follow)

    def list_files(self, run: str) -> list[RunFile]:
        """The files of a run's folder at the mediator."""
        reply = self._calls.ask("list_files", pb.RunRequest(run=run), run=run)
        if len(reply.files) > _MOST_FILES:
            raise MediatorFailed(f"the mediator lists {len(reply.files)} files of run {run}")
        return [RunFile(path=each.path, size=each.size) for each in reply.files]

    def read_file(self, run: str, file: RunFile, to: BinaryIO) -> None:
        """Write a file's bytes to `to`; MediatorFailed unless there are `file.size`."""
        request = pb.ReadFileRequest(run=run, path=file.path)
        at, timeout_s = 0, self._patience.call_s + file.size / SLOWEST_LINK
        for piece in self._calls.stream("read_file", request, run=run, timeout_s=timeout_s):
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
        """Ask a run in progress about a VirtualNode, with tensors both ways. QuestionFailed."""
        with tempfile.TemporaryDirectory(prefix="fedpilot-") as made:
            folder = Path(made)
            header, blob = write(question, folder)
            first = pb.AskRunRequest(run=run, kind=question.kind, header_json=header)
            if blob is not None:
                first.blob.CopyFrom(pb.Blob(digest=blob.digest, size=blob.size))
            tensors, answer = folder / (blob.digest if blob else "question"), folder / "answer"
            timeout_s = self._patience.work_s + self._patience.tensors_s

            def ask() -> pb.AskRunReply:
                call = self._calls.stub.ask_run(
                    question_messages(first, tensors), timeout=timeout_s
                )
                try:
                    return whole_answer(call, answer)
                finally:
                    call.cancel()

            reply = self._calls.again("ask_run", ask, run=run)
            if reply.WhichOneof("result") != "done":
                raise QuestionFailed(run, reply.failure.kind, reply.failure.message)
            path = answer if reply.done.blob.digest else None
            return read(reply.done.kind, reply.done.header_json, path)

    # -- sites --------------------------------------------------------------------------------

    def list_sites(self) -> list[Document]:
        """All joined sites by name, without their declared data."""
        return self._sites("")

    def _sites(self, only: str) -> list[Document]:
        reply = self._calls.ask("list_sites", pb.ListSitesRequest(site=only))
        found = [_document(text) for text in reply.site_json]
        return sorted(found, key=lambda site: str(site.get("name")))

    def show_site(self, name: str) -> Document:
        """Show a site with its declared `data`; NoSuchSite names the joined sites."""
        for site in self._sites(name) if name else ():
            if site.get("name") == name:
                return site
        names = ", ".join(str(site.get("name")) for site in self.list_sites())
        there = names or "none; `fedpilot site token NAME` lets one join"
        raise NoSuchSite(f"there is no site {name!r}; there are: {there}")

    def change_site(self, name: str, change: str) -> Document:
        """Cordon, uncordon, drain or remove a site, and return its state."""
        request = pb.ChangeSiteRequest(site=name, change=change)
        return _document(self._calls.ask("change_site", request, site=name).site_json)

    def run_at_site(self, site: str, arguments: list[str]) -> SiteCommandOutcome:
        """Run `fedpilot ARGUMENTS`, a cluster or job command, at a site's agent.

        The exit code is one of fedpilot's: 4 for a command that was ended at its deadline.
        """
        request = pb.RunAtSiteRequest(site=site, arguments=arguments)
        timeout_s = self._patience.work_s
        reply = self._calls.ask("run_at_site", request, site=site, timeout_s=timeout_s)
        code = exit_code_here(reply.exit_code)
        return SiteCommandOutcome(exit_code=code, out=reply.out, err=reply.err)

    def make_token(self, site: str, *, valid_s: float) -> tuple[str, float]:
        """Make a token for one join of the site; return it and its end in epoch seconds."""
        request = pb.MakeTokenRequest(site=site, valid_s=valid_s)
        reply = self._calls.ask("make_token", request, site=site)
        return reply.token, reply.expires_at

    # -- the federation -----------------------------------------------------------------------

    def list_audit(self, last: int) -> list[Document]:
        """The last audited acts, latest last."""
        reply = self._calls.ask("list_audit", pb.ListAuditRequest(last=last))
        return [_document(text) for text in reply.entry_json]

    def follow_events(self, *, after: int = 0, follow: bool = False) -> Iterator[Happening]:
        """Yield the federation's events after a number; with `follow`, endlessly."""
        return self._events("follow_events", "", after, follow, lambda: not follow)

    def _events(
        self, method: str, run: str, after: int, follow: bool, is_over: Callable[[], bool]
    ) -> Iterator[Happening]:
        last = after

        def attempt() -> Iterator[Happening]:
            nonlocal last
            request = pb.FollowRequest(run=run, after=last, follow=follow)
            for event in self._calls.stream(method, request, run=run):
                if event.number > last:
                    last = event.number
                    yield Happening(number=last, event=_document(event.event_json))

        return self._calls.again_when_cut(attempt, is_over, follow=follow)


def _document(text: str) -> Document:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MediatorFailed(f"the mediator's answer is no JSON: {text[:80]!r}") from error
    if not isinstance(found, dict):
        raise MediatorFailed(f"the mediator's answer is no JSON object: {text[:80]!r}")
    return found
