"""UserService: what commands and the Python API ask of runs, sites and the mediator itself.

Who calls and in which role was settled before. Answers are JSON documents, so that a newer mediator
may say more; times in them are epoch seconds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any

from ...core.health import SiteEvent, SiteState
from ...core.rules.results import event_without_results, run_without_results, tells_results
from ...core.rules.roles import Role, reads_results
from ...errors import BadRequest, NoSuchRun, NotPermitted, RequestRefused
from ...identity import Authority, Token, digest_of, new_secret
from ...identity.tls import Peer
from ...proto import federation_pb2 as pb
from ...wire.messages import check_protocol, check_site
from ...wire.payloads import header_json, read
from ..events import FEDERATION, EventLog
from ..orders.site_table import SiteEntry
from ..orders.sites import Sites
from ..orders.traffic_accounting import Booking
from ..runs.run_folders import LOG
from ..runs.runs import Runs
from ..settings import ServerSettings
from ..store import RunRecord
from ..store.database import Database
from .questions import Questions

log = logging.getLogger(__name__)

LOG_POLL_S = 0.3
LOG_PART = 64 << 10
"""Bytes of a log that are sent together."""
MOST_FILES = 10_000
LONGEST_TRACEBACK = 8_000
"""Characters of a traceback that are told; the last ones, which say what it is."""
MOST_AUDIT = 10_000
BY_HAND = "account"
"""In the place of a role: `who` is an account of the mediator's machine, not a certificate's."""
MOST_RUNS = 200
"""Of one answer."""
TOLD_TOGETHER_BYTES = 2 << 20
"""Of an answer that lists things: well below what a message may have."""
LONGEST_COMMAND = 64 << 10
"""Characters of a command for a site."""
SHORTEST_TOKEN_S, LONGEST_TOKEN_S = 1.0, 30 * 86_400.0
CHANGES = {
    "cordon": SiteEvent.CORDON,
    "uncordon": SiteEvent.UNCORDON,
    "drain": SiteEvent.DRAIN,
    "remove": SiteEvent.REMOVE,
}


class Users:
    """Serves all methods of UserService."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        authority: Authority,
        database: Database,
        events: EventLog,
        runs: Runs,
        sites: Sites,
        questions: Questions,
        booking: Booking,
        join_address: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._authority = authority
        self._database = database
        self._events = events
        self._runs = runs
        self._sites = sites
        self._booking = booking
        self.ask_run = questions.ask_run
        self._join_address = join_address

    # -- runs -------------------------------------------------------------------------------------

    async def submit(self, request: pb.SubmitRequest, context: Any, peer: Peer) -> pb.RunReply:
        """Take a run; asked twice with one id, it is submitted once."""
        check_protocol(request.protocol, here="this mediator", there="your fedpilot")
        return await self._told(await self._runs.submit(request, peer.name, peer.role), peer)

    async def list_runs(
        self, request: pb.ListRunsRequest, context: Any, peer: Peer
    ) -> pb.ListRunsReply:
        """The newest runs, or those before one; as many as one answer takes."""
        most, store = min(request.most or MOST_RUNS, MOST_RUNS), self._database.store
        records, more = await self._database.ask(store.newest_runs, most, request.after)
        told = await asyncio.to_thread(lambda: [self._run_json(record, peer) for record in records])
        fit = how_many_fit(told, TOLD_TOGETHER_BYTES)
        return pb.ListRunsReply(run_json=told[:fit], more=more + len(told) - fit)

    async def show_run(self, request: pb.RunRequest, context: Any, peer: Peer) -> pb.RunReply:
        """A run, with its manifest for those who may read its results."""
        return await self._told(await self._runs.record(request.run), peer)

    async def follow_run(
        self, request: pb.FollowRequest, context: Any, peer: Peer
    ) -> AsyncIterator[pb.Event]:
        """A run's events, until it ends."""
        run = (await self._readable(request.run, peer)).id
        goes_on = lambda: request.follow and self._runs.goes_on(run)  # noqa: E731
        async for record in self._events.follow(run, request.after, goes_on):
            yield pb.Event(number=record.number, event_json=record.event_json)

    async def run_log(
        self, request: pb.LogRequest, context: Any, peer: Peer
    ) -> AsyncIterator[pb.LogPart]:
        """What the coordinators of a run have printed."""
        run = (await self._readable(request.run, peer)).id
        path, at = self._runs.folder(run) / LOG, 0
        while True:
            more = request.follow and self._runs.goes_on(run)
            data = await asyncio.to_thread(_read_at, path, at, LOG_PART)
            if data:
                at += len(data)
                yield pb.LogPart(text=data.decode(errors="replace"))
            elif not more:
                return
            else:
                await asyncio.sleep(LOG_POLL_S)

    async def stop_run(self, request: pb.RunRequest, context: Any, peer: Peer) -> pb.RunReply:
        """Have a run end so that it can be resumed."""
        return await self._told(await self._runs.stop(request.run, peer.name), peer)

    async def resume_run(self, request: pb.RunRequest, context: Any, peer: Peer) -> pb.RunReply:
        """Go on with a run."""
        return await self._told(await self._runs.resume(request.run), peer)

    async def remove_run(self, request: pb.RunRequest, context: Any, peer: Peer) -> pb.RunReply:
        """Remove a run of the caller's that has ended; admins remove anybody's."""
        record = await self._runs.record(request.run)
        if peer.role is not Role.ADMIN and peer.name != record.owner:
            raise NotPermitted(
                f"run {record.id} is removed by {record.owner}, whose run it is, and by admins; "
                f"found {peer.name} ({peer.role})"
            )
        told = await self._told(record, peer)
        await self._runs.remove(record.id, who=peer.name, reason=f"{peer.name} removed it")
        return told

    async def list_files(
        self, request: pb.RunRequest, context: Any, peer: Peer
    ) -> pb.ListFilesReply:
        """The files of a run's folder."""
        run = (await self._readable(request.run, peer)).id
        found = await asyncio.to_thread(_files, self._runs.folder(run))
        return pb.ListFilesReply(files=[pb.File(path=path, size=size) for path, size in found])

    async def read_file(
        self, request: pb.ReadFileRequest, context: Any, peer: Peer
    ) -> AsyncIterator[pb.Piece]:
        """A file's bytes, as it is when it is asked for."""
        run = (await self._readable(request.run, peer)).id
        folder = self._runs.folder(run)
        sizes = dict(await asyncio.to_thread(_files, folder))
        if request.path not in sizes:
            raise NoSuchRun(f"run {run} has no file {request.path[:200]!r}")
        path, at, end = folder / request.path, 0, sizes[request.path]
        while at < end:
            step = min(self._settings.piece_bytes, end - at)
            data = await asyncio.to_thread(_read_at, path, at, step)
            if not data:
                raise RequestRefused(
                    f"{request.path} of run {run} was changed meanwhile; ask again"
                )
            yield pb.Piece(offset=at, data=data)
            at += len(data)

    async def _readable(self, id: str, peer: Peer) -> RunRecord:
        """A run whose results somebody may read; NotPermitted, NoSuchRun."""
        record = await self._runs.record(id)
        if not _reads(record, peer):
            raise NotPermitted(
                f"the results of run {record.id} are read by {record.owner}, whose run it is, and "
                f"by admins: it was submitted without --share; found {peer.name} ({peer.role})"
            )
        return record

    async def _told(self, record: RunRecord, peer: Peer) -> pb.RunReply:
        return pb.RunReply(run_json=await asyncio.to_thread(self._run_json, record, peer, True))

    def _run_json(self, record: RunRecord, peer: Peer, whole: bool = False) -> str:
        # Where it lies now: the mediator's folder may have been brought from elsewhere.
        folder = self._runs.folder(record.id)
        return _run_json(record, folder, whole, readable=_reads(record, peer))

    # -- sites ------------------------------------------------------------------------------------

    async def list_sites(
        self, request: pb.ListSitesRequest, context: Any, peer: Peer
    ) -> pb.ListSitesReply:
        """All sites by name but those that were removed; or one of them, with its data."""
        there = [each for each in self._sites.table if not each.removed]
        one = request.site
        found = [each for each in there if one in ("", each.name)]
        told = [self._site_json(each, with_data=bool(one)) for each in found]
        return pb.ListSitesReply(site_json=told)

    async def change_site(
        self, request: pb.ChangeSiteRequest, context: Any, peer: Peer
    ) -> pb.SiteReply:
        """Do what an admin wishes of a site; a drain may be waited for."""
        if request.change not in CHANGES:
            raise BadRequest(
                f"a site is changed by {', '.join(CHANGES)}; found {request.change[:80]!r}"
            )
        reason = f"{request.change} by {peer.name}"
        if request.change == "remove":
            await self._shut_out(self._sites.table.entry(request.site).name)
        entry = await self._sites.change(request.site, CHANGES[request.change], reason)
        if request.change == "drain" and request.timeout_s > 0:
            try:
                await self._sites.drained(entry.name, min(request.timeout_s, self._settings.ask_s))
            except TimeoutError:
                log.info("site %s is not empty after %g s", entry.name, request.timeout_s)
        return pb.SiteReply(site_json=self._site_json(entry))

    async def _shut_out(self, name: str) -> None:
        """Leave nothing good by which somebody could come as this site, until a token is made."""
        now = time.time()
        await self._database.ask(self._database.store.void_tokens, name, now=now)
        for issued in self._authority.issued():
            if (issued.name, issued.role) == (name, Role.SITE) and issued.state(now) == "valid":
                self._authority.revoke(issued.serial, now=now)

    async def run_at_site(
        self, request: pb.RunAtSiteRequest, context: Any, peer: Peer
    ) -> pb.RunAtSiteReply:
        """Run a command beside a site's agent, if its own policy allows that."""
        arguments = list(request.arguments)
        if not arguments or sum(map(len, arguments)) > LONGEST_COMMAND:
            raise BadRequest(f"a command has 1 to {LONGEST_COMMAND} characters")
        header = {
            "arguments": arguments,
            "timeout_s": self._settings.ask_s,
            "user": peer.name,
            "role": peer.role,
        }
        answer = await self._sites.orders.command(
            check_site(request.site), "command", header_json(header), self._settings.ask_s
        )
        if answer.WhichOneof("result") != "done":
            raise RequestRefused(f"site {request.site}: {answer.failure.message}")
        found = read("command", answer.done.header_json, None).header
        try:
            code, out, err = int(found["exit_code"]), str(found["out"]), str(found["err"])
        except (KeyError, TypeError, ValueError) as error:
            raise RequestRefused(f"site {request.site} has not said how it ended") from error
        return pb.RunAtSiteReply(exit_code=code, out=out, err=err)

    async def make_token(
        self, request: pb.MakeTokenRequest, context: Any, peer: Peer
    ) -> pb.MakeTokenReply:
        """A token with which a site may join, once."""
        site = check_site(request.site)
        if not SHORTEST_TOKEN_S <= request.valid_s <= LONGEST_TOKEN_S:
            raise BadRequest(
                f"a token is good for {SHORTEST_TOKEN_S:g} to {LONGEST_TOKEN_S:g} s; "
                f"found {request.valid_s:g}"
            )
        secret, now = new_secret(), time.time()
        token = Token(
            site=site,
            address=self._join_address(),
            authority=self._authority.certificate,
            secret=secret,
        )
        expires_at = now + request.valid_s
        await self._database.ask(
            self._database.store.add_token,
            digest_of(secret),
            site,
            made_by=peer.name,
            now=now,
            expires_at=expires_at,
        )
        return pb.MakeTokenReply(token=str(token), expires_at=expires_at)

    async def revoke_certificate(
        self, request: pb.RevokeRequest, context: Any, peer: Peer
    ) -> pb.RevokeReply:
        """Refuse certificates from now on, and end the sessions that were begun with them."""
        serials = self._authority.revoke(request.which, now=time.time())
        self._sites.end_sessions(serials)
        return pb.RevokeReply(serials=serials)

    async def list_audit(
        self, request: pb.ListAuditRequest, context: Any, peer: Peer
    ) -> pb.ListAuditReply:
        """The last acts that changed something, or were refused, here or in the folder of `certs`.

        As many of them as one answer takes.
        """
        last = min(request.last or 100, MOST_AUDIT)
        entries = await self._database.ask(self._database.store.audit, last)
        by_hand = await asyncio.to_thread(self._authority.acts, last)
        told = last_acts(map(asdict, entries), map(asdict, by_hand), last)
        fit = how_many_fit(reversed(told), TOLD_TOGETHER_BYTES)
        return pb.ListAuditReply(entry_json=told[len(told) - fit :])

    async def follow_events(
        self, request: pb.FollowRequest, context: Any, peer: Peer
    ) -> AsyncIterator[pb.Event]:
        """What happened in the federation, for as long as the caller listens."""
        goes_on = lambda: request.follow  # noqa: E731
        async for record in self._events.follow(FEDERATION, request.after, goes_on):
            yield pb.Event(number=record.number, event_json=_event_json(record.event_json, peer))

    def _site_json(self, entry: SiteEntry, *, with_data: bool = False) -> str:
        standing = entry.standing
        data = {"data": json.loads(entry.data_json or "{}")} if with_data else {}
        return json.dumps(
            {
                **data,
                "name": entry.name,
                "state": standing.state,
                "reason": standing.reason,
                "since": standing.since,
                "wish": standing.wish,
                "connected": entry.session is not None,
                "first_joined": entry.first_joined,
                "heard_at": standing.heard_at,
                "agent": entry.agent,
                "version": entry.version,
                "capacity": entry.capacity.to_json(),
                "runs": sorted(run for run in entry.holding if run),
                "orders": len(entry.orders.open),
                "bytes": self._booking.total(entry.name),
                "removed": standing.state is SiteState.LEFT,
            },
            ensure_ascii=False,  # no longer than what the site has said
        )


def last_acts(
    asked: Iterable[dict[str, Any]], by_hand: Iterable[dict[str, Any]], last: int
) -> list[str]:
    """The last acts of both kinds as JSON, the latest last; those by hand have a role of theirs."""
    acts = [*asked, *({"role": BY_HAND, **each} for each in by_hand)]
    acts.sort(key=lambda act: float(act["at"]))
    return [json.dumps(act) for act in acts[max(0, len(acts) - last) :]]


def how_many_fit(texts: Iterable[str], most_bytes: int) -> int:
    """How many of these texts go together, from the first on; at least one, if there is any."""
    sizes = accumulate(len(text.encode()) for text in texts)
    return sum(size <= most_bytes or number == 0 for number, size in enumerate(sizes))


def _reads(record: RunRecord, peer: Peer) -> bool:
    return reads_results(peer.name, peer.role, record.owner, shared=record.shared)


def _event_json(event_json: str, peer: Peer) -> str:
    """An event of the federation as somebody may read it.

    One of an older mediator does not say whose run it is about: admins alone read its results.
    """
    event = json.loads(event_json)
    owner, shared = str(event.get("owner", "")), event.get("shared") is True
    if not tells_results(event) or reads_results(peer.name, peer.role, owner, shared=shared):
        return event_json
    return json.dumps(event_without_results(event))


def _run_json(record: RunRecord, folder: Path, whole: bool, *, readable: bool) -> str:
    """A run as `fedpilot runs` shows it: what the store knows, and what its folder says.

    Whoever may not read its results sees whose it is and how it stands.
    """
    manifest, last = _manifest(folder), _last_row(folder)
    facts = {
        "run_id": record.id,
        "name": record.name,
        "owner": record.owner,
        "status": record.state,
        "reason": record.reason,
        "failure": str(manifest.get("failure") or ""),
        "interactive": record.interactive,
        "shared": record.shared,
        "rounds": last.get("round", 0),
        "accuracy": last.get("accuracy"),
        "loss": last.get("loss"),
        "digest": record.digest or str(last.get("model") or ""),
        "folder": str(folder),
        "restarts": record.restarts,
        "submitted_at": record.submitted_at,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
    }
    if not readable:
        facts = run_without_results(facts)
    elif whole:
        sites = last.get("sites")
        facts["sites"] = sites if isinstance(sites, dict) else {}
        facts["refused"] = _refused(folder)
        facts["traceback"] = _traceback(folder)
        facts["manifest"] = manifest
    return json.dumps(facts)


def _traceback(folder: Path) -> str:
    """What ended a run in its user's own code; empty if nothing of the kind did."""
    try:
        return (folder / "failure.txt").read_text(errors="replace")[-LONGEST_TRACEBACK:]
    except OSError:
        return ""


def _refused(folder: Path) -> list[dict[str, Any]]:
    """The answers of sites that did not count in a run; a half-written line is none."""
    try:
        lines = (folder / "journal" / "refusals.jsonl").read_bytes().rpartition(b"\n")[0]
        found = [json.loads(line) for line in lines.splitlines()]
    except (OSError, ValueError):
        return []
    return [each for each in found if isinstance(each, dict)]


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _last_row(folder: Path) -> dict[str, Any]:
    """The metrics of the last round; a half-written line does not count."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_PART))
            lines = file.read().rpartition(b"\n")[0].splitlines()
        found = json.loads(lines[-1]) if lines else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _files(folder: Path) -> list[tuple[str, int]]:
    """The plain files of a run, with their sizes; nothing hidden, and no links."""
    found: list[tuple[str, int]] = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(root) / name
            if name.startswith(".") or path.is_symlink():
                continue
            found.append((path.relative_to(folder).as_posix(), path.stat().st_size))
            if len(found) >= MOST_FILES:
                return found
    return found


def _read_at(path: Path, offset: int, nbytes: int) -> bytes:
    """Some bytes of a file; none at its end, or while it is not there."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(file, nbytes, offset)
    finally:
        os.close(file)
