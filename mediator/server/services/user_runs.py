"""UserRuns: users' calls to submit, stop, resume, remove and read runs.

The guard has checked the caller and its role. Times in answers are epoch seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from ...core.rules.roles import Role, reads_results
from ...errors import NoSuchRun, NotPermitted, RequestRefused
from ...identity.tls import Peer
from ...proto import federation_pb2 as pb
from ...wire.messages import check_protocol
from ..events import EventLog
from ..runs.run_folders import LOG, files_of, read_at
from ..runs.runs import Runs
from ..settings import ServerSettings
from ..store import RunRecord
from ..store.database import Database
from .paging import TOLD_TOGETHER_BYTES, how_many_fit
from .run_document import run_json

LOG_POLL_S = 0.3
LOG_PART = 64 << 10
"""Bytes of a log in one message."""
MOST_RUNS = 200
"""Runs in one answer."""


@dataclass(eq=False)
class UserRuns:
    """Serves the methods of UserService about runs."""

    _settings: ServerSettings
    _runs: Runs
    _database: Database
    _events: EventLog

    async def submit(self, request: pb.SubmitRequest, peer: Peer) -> pb.RunReply:
        """Submit a run; a repeat with the same id changes nothing."""
        check_protocol(request.protocol, here="this mediator", there="your fedpilot")
        return await self._told(await self._runs.submit(request, peer.name, peer.role), peer)

    async def list_runs(self, request: pb.ListRunsRequest, peer: Peer) -> pb.ListRunsReply:
        """The newest runs, or those before `after`, as many as fit into one answer."""
        most, store = min(request.most or MOST_RUNS, MOST_RUNS), self._database.store
        records, more = await self._database.ask(store.newest_runs, most, request.after)
        told = await asyncio.to_thread(lambda: [self._run_json(record, peer) for record in records])
        fit = how_many_fit(told, TOLD_TOGETHER_BYTES)
        return pb.ListRunsReply(run_json=told[:fit], more=more + len(told) - fit)

    async def show_run(self, request: pb.RunRequest, peer: Peer) -> pb.RunReply:
        """Show a run, with its manifest if the caller may read its results."""
        return await self._told(await self._runs.record(request.run), peer)

    async def follow_run(self, request: pb.FollowRequest, peer: Peer) -> AsyncIterator[pb.Event]:
        """Stream a run's events; with `follow`, until it ends."""
        run = (await self._readable(request.run, peer)).id
        goes_on = lambda: request.follow and self._runs.goes_on(run)  # noqa: E731
        async for record in self._events.follow(run, request.after, goes_on):
            yield pb.Event(number=record.number, event_json=record.event_json)

    async def run_log(self, request: pb.LogRequest, peer: Peer) -> AsyncIterator[pb.LogPart]:
        """Stream the output of a run's coordinators."""
        run = (await self._readable(request.run, peer)).id
        path, at = self._runs.folders.of(run) / LOG, 0
        while True:
            more = request.follow and self._runs.goes_on(run)
            data = await asyncio.to_thread(read_at, path, at, LOG_PART)
            if data:
                at += len(data)
                yield pb.LogPart(text=data.decode(errors="replace"))
            elif not more:
                return
            else:
                await asyncio.sleep(LOG_POLL_S)

    async def stop_run(self, request: pb.RunRequest, peer: Peer) -> pb.RunReply:
        """Stop a run so that it can be resumed."""
        return await self._told(await self._runs.stop(request.run, peer.name), peer)

    async def resume_run(self, request: pb.RunRequest, peer: Peer) -> pb.RunReply:
        return await self._told(await self._runs.resume(request.run), peer)

    async def remove_run(self, request: pb.RunRequest, peer: Peer) -> pb.RunReply:
        """Remove a run that has ended, for its owner or an admin."""
        record = await self._runs.record(request.run)
        if peer.role is not Role.ADMIN and peer.name != record.owner:
            raise NotPermitted(
                f"run {record.id} belongs to {record.owner}: only its owner and admins may remove "
                f"it; found {peer.name} ({peer.role})"
            )
        told = await self._told(record, peer)
        await self._runs.remove(record.id, who=peer.name, reason=f"{peer.name} removed it")
        return told

    async def list_files(self, request: pb.RunRequest, peer: Peer) -> pb.ListFilesReply:
        """The files of a run's folder."""
        run = (await self._readable(request.run, peer)).id
        found = await asyncio.to_thread(files_of, self._runs.folders.of(run))
        return pb.ListFilesReply(files=[pb.File(path=path, size=size) for path, size in found])

    async def read_file(self, request: pb.ReadFileRequest, peer: Peer) -> AsyncIterator[pb.Piece]:
        """Stream a file, up to its present size."""
        run = (await self._readable(request.run, peer)).id
        folder = self._runs.folders.of(run)
        sizes = dict(await asyncio.to_thread(files_of, folder))
        if request.path not in sizes:
            raise NoSuchRun(f"run {run} has no file {request.path[:200]!r}")
        path, at, end = folder / request.path, 0, sizes[request.path]
        while at < end:
            step = min(self._settings.piece_bytes, end - at)
            data = await asyncio.to_thread(read_at, path, at, step)
            if not data:
                raise RequestRefused(
                    f"{request.path} of run {run} was changed meanwhile; ask again"
                )
            yield pb.Piece(offset=at, data=data)
            at += len(data)

    async def _readable(self, id: str, peer: Peer) -> RunRecord:
        """A run's record, if the caller may read its results; NotPermitted, NoSuchRun."""
        record = await self._runs.record(id)
        if not _reads(record, peer):
            raise NotPermitted(
                f"run {record.id} belongs to {record.owner} and was submitted without --share: "
                f"only its owner and admins may read its results; found {peer.name} ({peer.role})"
            )
        return record

    async def _told(self, record: RunRecord, peer: Peer) -> pb.RunReply:
        return pb.RunReply(run_json=await asyncio.to_thread(self._run_json, record, peer, True))

    def _run_json(self, record: RunRecord, peer: Peer, whole: bool = False) -> str:
        # Not the folder in the record: the mediator's folder may have been moved since.
        folder = self._runs.folders.of(record.id)
        place = self._runs.supervisor.queue.wait_of(record.id)
        return run_json(record, folder, whole, readable=_reads(record, peer), place=place)


def _reads(record: RunRecord, peer: Peer) -> bool:
    return reads_results(peer.name, peer.role, record.owner, shared=record.shared)
