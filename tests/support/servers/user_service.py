"""A mediator that only answers users: real gRPC and mutual TLS, its answers scripted."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from fedpilot.mediator.client.client import MediatorClient
from fedpilot.mediator.client.retrying_stub import ClientTimeouts
from fedpilot.mediator.identity import Authority, Credentials, Role
from fedpilot.mediator.identity.tls import peer_of, server_credentials
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.rpc import MESSAGE_OPTIONS, USER, handler

Document = dict[str, Any]
NOW = 1_800_000_000.0
PATIENCE = ClientTimeouts(
    call_s=5, work_s=5, again_s=2, cut_s=5, stream_s=5, first_pause_s=0.01, longest_pause_s=0.02
)
WAIT_S = 60.0
"""Longer than anything here takes; a follower that waits for ever would hold the server."""


def a_run(run: str, **facts: Any) -> Document:
    """A run as the mediator tells of it."""
    return {
        "run_id": run,
        "name": "digits",
        "owner": "alice",
        "status": "running",
        "reason": "",
        "failure": "",
        "interactive": False,
        "rounds": 0,
        "accuracy": None,
        "loss": None,
        "digest": "",
        "folder": f"/state/runs/{run}",
        "restarts": 0,
        "submitted_at": NOW,
        "started_at": NOW + 1,
        "ended_at": None,
        **facts,
    }


def a_site(name: str, **facts: Any) -> Document:
    """A site as the mediator tells of it."""
    return {
        "name": name,
        "state": "ready",
        "wish": "open",
        "reason": "it has joined",
        "since": NOW,
        "first_joined": NOW,
        "version": "0.1.0",
        "capacity": {"total": {"CPU": 8.0}, "free": {"CPU": 6.0}, "machines": 2},
        "data": {},
        "runs": [],
        "bytes": {"to_site": 1_000, "from_site": 500},
        **facts,
    }


@dataclass(slots=True)
class UserService:
    """What it knows, and what it was asked; tests change the one and read the other."""

    runs: dict[str, Document] = field(default_factory=dict)
    sites: dict[str, Document] = field(default_factory=dict)
    events: dict[str, list[Document]] = field(default_factory=dict)
    """By run; empty for those of the federation."""
    logs: dict[str, str] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    acts: list[Document] = field(default_factory=list)
    answers: dict[str, Callable[[Document, bytes], pb.AskRunReply]] = field(default_factory=dict)
    """By kind; their tensors are sent in pieces of `piece_bytes`."""
    piece_bytes: int = 1_000
    at_site: Callable[[str, list[str]], pb.RunAtSiteReply] = lambda site, arguments: (
        pb.RunAtSiteReply()
    )
    fails: list[tuple[str, grpc.StatusCode, str]] = field(default_factory=list)
    """Each makes the next call of a method fail so."""
    cuts: list[int] = field(default_factory=list)
    """Each ends the next stream of events with UNAVAILABLE after so many."""
    asked: list[tuple[str, Any]] = field(default_factory=list)
    peers: list[str] = field(default_factory=list)
    submissions: list[pb.SubmitRequest] = field(default_factory=list)
    polls_until_drained: int = 0
    stops_after: int = 0
    """Looks at a run that was stopped until it has ended."""
    page: int = 100
    """Runs that one answer lists."""
    on_submit: Callable[[str], None] = lambda run: None
    on_cut: Callable[[], None] = lambda: None
    news: threading.Condition = field(default_factory=threading.Condition)

    def say(self, run: str, *events: Document) -> None:
        """Let events happen."""
        with self.news:
            self.events.setdefault(run, []).extend(events)
            self.news.notify_all()

    def end(self, run: str, status: str, **facts: Any) -> None:
        """Let a run end."""
        with self.news:
            self.runs[run] = {**self.runs[run], "status": status, **facts}
            self.news.notify_all()

    def _begin(self, method: str, request: Any, context: grpc.ServicerContext) -> None:
        self.asked.append((method, request))
        self.peers.append(peer_of(context).name)  # type: ignore[arg-type]
        for each in self.fails:
            if each[0] == method:
                self.fails.remove(each)
                context.abort(each[1], each[2])

    def _run(self, run: str, context: grpc.ServicerContext) -> Document:
        if run not in self.runs:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no run {run}")
        return self.runs[run]

    def _site(self, site: str, context: grpc.ServicerContext) -> Document:
        if site not in self.sites:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no site {site!r} has joined")
        return self.sites[site]

    # -- the service ------------------------------------------------------------------------------

    def submit(self, request: pb.SubmitRequest, context: grpc.ServicerContext) -> pb.RunReply:
        if request.run not in self.runs:
            self.submissions.append(request)
            self.runs[request.run] = a_run(request.run, interactive=request.interactive)
            self.on_submit(request.run)
        self._begin("submit", request, context)
        return pb.RunReply(run_json=json.dumps(self.runs[request.run]))

    def list_runs(
        self, request: pb.ListRunsRequest, context: grpc.ServicerContext
    ) -> pb.ListRunsReply:
        self._begin("list_runs", request, context)
        names = list(self.runs)[::-1]
        names = names[names.index(request.after) + 1 if request.after else 0 :]
        told = [json.dumps(self.runs[name]) for name in names[: min(request.most, self.page)]]
        return pb.ListRunsReply(run_json=told, more=len(names) - len(told))

    def show_run(self, request: pb.RunRequest, context: grpc.ServicerContext) -> pb.RunReply:
        self._begin("show_run", request, context)
        if self.stops_after and self._run(request.run, context)["status"] == "stopping":
            self.stops_after -= 1
            if not self.stops_after:
                self.end(request.run, "stopped")
        return pb.RunReply(run_json=json.dumps(self._run(request.run, context)))

    def follow_run(
        self, request: pb.FollowRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.Event]:
        self._begin("follow_run", request, context)
        self._run(request.run, context)
        yield from self._follow(
            request, context, lambda: self.runs[request.run]["status"] == "running"
        )

    def _follow(
        self,
        request: pb.FollowRequest,
        context: grpc.ServicerContext,
        goes_on: Callable[[], bool],
    ) -> Iterator[pb.Event]:
        cut = self.cuts.pop(0) if self.cuts else None
        sent, at = 0, request.after
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until and context.is_active():
            with self.news:
                told = self.events.get(request.run, [])[at:]
                more = request.follow and goes_on()
                if not told and more and cut != sent:
                    self.news.wait(0.05)
            for event in told:
                if sent == cut:
                    break
                at, sent = at + 1, sent + 1
                yield pb.Event(number=at, event_json=json.dumps(event))
            if sent == cut:
                self.on_cut()
                context.abort(grpc.StatusCode.UNAVAILABLE, "the link is cut")
            if not told and not more:
                return

    def run_log(
        self, request: pb.LogRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.LogPart]:
        self._begin("run_log", request, context)
        self._run(request.run, context)
        cut = self.cuts.pop(0) if self.cuts else None
        for number, letter in enumerate(self.logs[request.run]):
            if number == cut:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the link is cut")
            yield pb.LogPart(text=letter)

    def stop_run(self, request: pb.RunRequest, context: grpc.ServicerContext) -> pb.RunReply:
        self._begin("stop_run", request, context)
        self._run(request.run, context)
        self.end(request.run, "stopping" if self.stops_after else "stopped")
        return pb.RunReply(run_json=json.dumps(self.runs[request.run]))

    def resume_run(self, request: pb.RunRequest, context: grpc.ServicerContext) -> pb.RunReply:
        self._begin("resume_run", request, context)
        if self._run(request.run, context)["status"] == "finished":
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "it is finished: nothing to resume")
        self.end(request.run, "running")
        self.on_submit(request.run)
        return pb.RunReply(run_json=json.dumps(self.runs[request.run]))

    def remove_run(self, request: pb.RunRequest, context: grpc.ServicerContext) -> pb.RunReply:
        self._begin("remove_run", request, context)
        if self._run(request.run, context)["status"] == "running":
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "it is running: stop it first")
        return pb.RunReply(run_json=json.dumps(self.runs.pop(request.run)))

    def list_files(
        self, request: pb.RunRequest, context: grpc.ServicerContext
    ) -> pb.ListFilesReply:
        self._begin("list_files", request, context)
        found = self.files.get(request.run, {})
        files = [pb.File(path=path, size=len(data)) for path, data in found.items()]
        return pb.ListFilesReply(files=files)

    def read_file(
        self, request: pb.ReadFileRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.Piece]:
        self._begin("read_file", request, context)
        data = self.files[request.run][request.path]
        for at in range(0, len(data), 1000):
            yield pb.Piece(offset=at, data=data[at : at + 1000])

    def ask_run(
        self, messages: Iterator[pb.AskRunRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.AskRunReply]:
        request = next(messages)
        self._begin("ask_run", request, context)
        tensors = b"".join(each.tensors for each in messages)
        reply = self.answers[request.kind](json.loads(request.header_json), tensors)
        tensors, reply.tensors = reply.tensors, b""
        if tensors:
            digest = hashlib.sha256(tensors).hexdigest()
            reply.done.blob.CopyFrom(pb.Blob(digest=digest, size=len(tensors)))
        yield reply
        for at in range(0, len(tensors), self.piece_bytes):
            yield pb.AskRunReply(tensors=tensors[at : at + self.piece_bytes])

    def list_sites(
        self, request: pb.ListSitesRequest, context: grpc.ServicerContext
    ) -> pb.ListSitesReply:
        self._begin("list_sites", request, context)
        for name, site in self.sites.items():
            if site["state"] == "draining":
                self.polls_until_drained -= 1
                if self.polls_until_drained <= 0:
                    self.sites[name] = {**site, "state": "cordoned", "runs": []}
        left_out = set() if request.site else {"data"}
        told = [
            json.dumps({key: value for key, value in site.items() if key not in left_out})
            for name, site in self.sites.items()
            if request.site in ("", name)
        ]
        return pb.ListSitesReply(site_json=told)

    def change_site(
        self, request: pb.ChangeSiteRequest, context: grpc.ServicerContext
    ) -> pb.SiteReply:
        self._begin("change_site", request, context)
        states = {"cordon": "cordoned", "uncordon": "ready", "drain": "draining", "remove": "left"}
        site = {**self._site(request.site, context), "state": states[request.change]}
        self.sites[request.site] = site
        return pb.SiteReply(site_json=json.dumps(site))

    def run_at_site(
        self, request: pb.RunAtSiteRequest, context: grpc.ServicerContext
    ) -> pb.RunAtSiteReply:
        self._begin("run_at_site", request, context)
        if self._site(request.site, context)["state"] == "lost":
            context.abort(
                grpc.StatusCode.UNAVAILABLE, f"site {request.site} is lost: nothing was heard of it"
            )
        return self.at_site(request.site, list(request.arguments))

    def make_token(
        self, request: pb.MakeTokenRequest, context: grpc.ServicerContext
    ) -> pb.MakeTokenReply:
        self._begin("make_token", request, context)
        return pb.MakeTokenReply(token="fp1.secret", expires_at=NOW + request.valid_s)

    def revoke_certificate(
        self, request: pb.RevokeRequest, context: grpc.ServicerContext
    ) -> pb.RevokeReply:
        self._begin("revoke_certificate", request, context)
        return pb.RevokeReply(serials=[request.which])

    def list_audit(
        self, request: pb.ListAuditRequest, context: grpc.ServicerContext
    ) -> pb.ListAuditReply:
        self._begin("list_audit", request, context)
        return pb.ListAuditReply(entry_json=[json.dumps(act) for act in self.acts[-request.last :]])

    def follow_events(
        self, request: pb.FollowRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.Event]:
        self._begin("follow_events", request, context)
        yield from self._follow(request, context, lambda: True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A fake mediator that runs."""

    service: UserService
    address: str
    credentials: Path
    """Alice's, an admin."""
    authority: Authority

    @property
    def options(self) -> list[str]:
        """What leads a command here."""
        return ["--mediator", self.address, "--credentials", str(self.credentials)]


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """Serve on a free port of this machine; the authority's files go into the folder."""
    now = time.time()
    authority = Authority.create(folder / "authority", now=now)
    authority.issue("alice", Role.ADMIN, now=now).write(folder / "alice")
    shown = authority.issue("mediator", Role.MEDIATOR, ["127.0.0.1", "localhost"], now=now)
    service = UserService()
    threads = ThreadPoolExecutor(16)
    server = grpc.server(threads, options=[*MESSAGE_OPTIONS, ("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((handler(USER, service),))
    port = server.add_secure_port("127.0.0.1:0", server_credentials(shown))
    server.start()
    try:
        yield Served(
            service=service,
            address=f"127.0.0.1:{port}",
            credentials=folder / "alice",
            authority=authority,
        )
    finally:
        server.stop(None).wait(60)
        threads.shutdown()


def connected(served: Served, **changes: float) -> MediatorClient:
    patience = ClientTimeouts(
        **{**{n: getattr(PATIENCE, n) for n in ClientTimeouts.__slots__}, **changes}
    )
    return MediatorClient(served.address, Credentials.read(served.credentials), patience=patience)


def asked(served: Served, method: str) -> int:
    return sum(each == method for each, _ in served.service.asked)
