"""RunnerLink: a Link to a runner on this machine, for a process without an event loop.

The tensors of orders are written into the folder that the runner knows as its `blobs`; an answer's
are views of the file that the runner wrote, which may be removed as soon as it was opened.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from ..blobs import Blob
from ..errors import SiteLost
from ..payloads import BadPayload, header_json, write
from ..proto import federation_pb2 as pb
from ..wire import BadMessage, blob_message, payload_of
from ..workload import Notify, Payload
from .driving import LISTENS_S, AsyncRunner
from .failures import error_of
from .keeping import Keeping
from .process import RunnerProcess

CLOSED = "the link to it was closed here"
CALL_S = 10.0
"""How long the link's own thread may take for what does not wait for the runner."""

T = TypeVar("T")


class Outbox:
    """The blobs of orders on their way to some runners; may be used from any thread.

    The same tensors that go to several sites, one after another, are written and hashed once.
    """

    def __init__(self, keeping: Keeping) -> None:
        self.keeping = keeping
        self._lock = threading.Lock()
        self._last: tuple[Mapping[str, Any], Blob] | None = None

    def put(self, payload: Payload) -> pb.Blob | None:
        """The blob of a payload's tensors, kept until `done` was called for it as often."""
        if not payload.tensors:
            return None
        with self._lock:
            if self._last is not None and self._last[0] is payload.tensors:
                blob = blob_message(self._last[1])
                if blob is not None and self.keeping.keep_again(blob.digest):
                    return blob
            tensors = Payload(kind=payload.kind, tensors=payload.tensors)
            order = self.keeping.keep(lambda store: pb.Order(blob=_written(tensors, store)))
            self._last = payload.tensors, Blob(order.blob.digest, order.blob.size)
            return order.blob

    def done(self, blob: pb.Blob | None) -> None:
        """An order was answered."""
        if blob is not None and blob.digest:
            self.keeping.let_go(blob.digest)


def _written(payload: Payload, store: Any) -> pb.Blob | None:
    return blob_message(write(payload, store)[1])


class RunnerLink:
    """A link to one runner, with a thread of its own until `close`."""

    def __init__(self, process: RunnerProcess, outbox: Outbox) -> None:
        self.process = process
        self._outbox = outbox
        self._notify: Notify | None = None
        self._runner: AsyncRunner | None = None
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"link {process.settings.site}", daemon=True
        )
        self._thread.start()
        self._connected = self._run(self._connect())

    def ask(
        self, verb: str, payload: Payload, *, key: str, round_number: int = 0, purpose: str = ""
    ) -> Future[Payload]:
        """Have the runner work on it; the future of its answer."""
        site, run = self.process.settings.site, self.process.settings.run
        answer: Future[Payload] = Future()
        try:
            header = header_json(payload.header)
            blob = self._outbox.put(payload)
        except Exception as error:
            answer.set_exception(error)
            return answer
        order = pb.Order(
            id=pb.OrderId(run=run, key=key),
            verb=verb,
            kind=payload.kind,
            header_json=header,
            blob=blob,
            round=round_number,
            purpose=purpose,
        )

        def take(asked: Future[Payload]) -> None:
            self._outbox.done(blob)
            closed = SiteLost(site, CLOSED) if asked.cancelled() else None
            if (error := closed or asked.exception()) is None:
                answer.set_result(asked.result())
            else:
                answer.set_exception(error)

        if self._closed:
            self._outbox.done(blob)
            answer.set_exception(SiteLost(site, CLOSED))
        else:
            self._run(self._asked(order)).add_done_callback(take)
        return answer

    def listen(self, notify: Notify) -> None:
        """Tell this one, in the link's thread, what happens at the site."""
        self._notify = notify

    def close(self, reason: str = "the run has ended") -> None:
        """Have the runner end, and end the link; what is open fails. May be called again."""
        if self._closed:
            return
        self._closed = True
        with suppress(Exception):
            self._run(self._leave(reason)).result(CALL_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    # -- within the thread --------------------------------------------------------------------

    async def _connect(self) -> AsyncRunner:
        self._runner = await AsyncRunner.connect(
            self.process.folder, on_event=self._happened, within_s=LISTENS_S
        )
        return self._runner

    async def _asked(self, order: pb.Order) -> Payload:
        runner = await asyncio.shield(asyncio.wrap_future(self._connected))
        answer = await runner.ask(order)
        try:
            if answer.WhichOneof("result") == "failure":
                raise error_of(self.process.settings.site, answer.failure)
            return payload_of(answer.done, self._outbox.keeping.store)
        finally:
            runner.taken(answer.id)

    async def _leave(self, reason: str) -> None:
        self._connected.cancel()
        if self._runner is not None:
            self._runner.end(reason)
            await self._runner.close()
        else:
            self.process.terminate()
        open_ = asyncio.all_tasks() - {asyncio.current_task()}
        if open_:  # they are told that the link is closed
            await asyncio.wait(open_, timeout=CALL_S / 2)

    def _happened(self, event: pb.Happened) -> None:
        if self._notify is None:
            return
        with suppress(BadPayload, BadMessage, json.JSONDecodeError):
            self._notify(Payload(kind=event.kind, header=json.loads(event.header_json)))
