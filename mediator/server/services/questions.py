"""UserService.AskRun: a user's question to a run in progress, with tensors of any size both ways.

The mediator passes a question on once its tensors have arrived and match the announced digest, so
no user can name another's tensors. Sites' policies judge the run's owner, not the user who asks, so
only the owner and admins may ask.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from ...core.rules.roles import Role
from ...errors import BadRequest, NotPermitted, RequestRefused
from ...identity.tls import Peer
from ...proto import federation_pb2 as pb
from ...wire.blobs.blob import Blob
from ...wire.blobs.store import BlobStore
from ...wire.messages import RunId, blob_of, parsed
from ...wire.payloads import read, read_tensors
from ...wire.transfer import TransferSettings
from ...wire.transfer.streams import opened
from ..runs.runs import Runs
from ..settings import ServerSettings
from ..store import RunRecord
from .coordinators import Coordinators

PATIENCE = TransferSettings()


@dataclass(eq=False)
class Questions:
    """Serves `AskRun`; the guard has checked the caller and its role."""

    _settings: ServerSettings
    _runs: Runs
    _coordinators: Coordinators
    _blobs: BlobStore

    async def ask_run(
        self, first: pb.AskRunRequest, rest: AsyncIterator[bytes], context: Any, peer: Peer
    ) -> None:
        """Ask the coordinator of a run in progress, and write its answer. NotPermitted."""
        record = await self._runs.record(first.run)
        if why := objection(record, peer):
            raise NotPermitted(why)
        run = RunId(record.id)
        header = first.header_json or "{}"
        read(first.kind, header, None)
        question = pb.Request(kind=first.kind, header_json=header)
        blob = blob_of(first.blob)
        with ExitStack() as undo:
            if blob is not None:
                undo.enter_context(self._blobs.pinned(blob.digest))
                await self._take_in(blob, rest)
                question.blob.CopyFrom(first.blob)
            reply = await self._coordinators.ask(run, question, self._settings.ask_s)
        if reply.WhichOneof("result") == "failure":
            await context.write(pb.AskRunReply(failure=reply.failure))
            return
        answered = blob_of(reply.done.blob)
        await context.write(pb.AskRunReply(done=reply.done))
        if answered is not None:
            await self._give_out(run, answered, context)

    async def _take_in(self, blob: Blob, rest: AsyncIterator[bytes]) -> None:
        """Receive a user's tensors. BadRequest, BadBlob or BadPayload unless they match `blob`."""
        most = self._settings.largest_blob_bytes
        if blob.size > most:
            raise BadRequest(
                f"the tensors of a question have at most {most} bytes; found {blob.size}"
            )
        owner = secrets.token_hex(8)
        part = await opened(self._blobs, blob, owner)
        try:
            async with asyncio.timeout(PATIENCE.total_s(blob.size)):
                while part.size < blob.size:
                    message = await anext(rest, None)
                    data = b"" if message is None else parsed(pb.AskRunRequest, message).tensors
                    if not data:
                        raise BadRequest(
                            f"{blob.size} bytes of tensors were announced, and {part.size} came"
                        )
                    await asyncio.to_thread(part.write, data)
                path = await asyncio.to_thread(part.finish)
            await asyncio.to_thread(read_tensors, path)
        except TimeoutError:
            raise TimeoutError("the tensors of the question came too slowly") from None
        finally:
            part.close()
            self._blobs.drop_part(blob, owner)

    async def _give_out(self, run: RunId, blob: Blob, context: Any) -> None:
        try:
            # An open file outlives its removal.
            file = self._blobs.path(blob.digest).open("rb")
        except FileNotFoundError:
            raise RequestRefused(f"the answer of run {run} is gone by now; ask again") from None
        with file:
            left = blob.size
            async with asyncio.timeout(PATIENCE.total_s(blob.size)):
                while left:
                    step = min(self._settings.piece_bytes, left)
                    data = await asyncio.to_thread(file.read, step)
                    if not data:
                        raise RequestRefused(f"the answer of run {run} is shorter than announced")
                    await context.write(pb.AskRunReply(tensors=data))
                    left -= len(data)


def objection(record: RunRecord, peer: Peer) -> str:
    """Say why a user may not ask about a run's clients; empty for its owner and admins."""
    if peer.role is Role.ADMIN or peer.name == record.owner:
        return ""
    return (
        f"run {record.id} belongs to {record.owner}: only its owner and admins may ask about its "
        f"clients; found {peer.name} ({peer.role})"
    )
