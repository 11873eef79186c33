"""RunnerLink: a Link to a runner on this machine, for a process without an event loop.

Both share a folder of blobs. An answer's tensors are views of a file that the runner wrote; once
open, it may be removed.

A runner's death loses its site. With `start_next`, the next prepare starts another runner, after a
pause and within a budget.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from ...core.restarts import RestartSettings
from ...errors import RunnerDied, RunnersSpent, SiteLost
from ...federation.futures import failed
from ...proto import federation_pb2 as pb
from ...wire.blobs.blob import Blob
from ...wire.failures import error_of
from ...wire.messages import BadMessage, blob_message
from ...wire.payloads import BadPayload, header_json
from ...wire.references import Keeping
from ...workload import Notify, Payload
from .client import LISTENS_S, RunnerClient
from .deaths import AT_ITS_START, Deaths, place_of
from .process import RunnerProcess

CLOSED = "the link to it was closed here"
CALL_S = 10.0
"""How long a call into the link's thread may take if it does not wait for the runner."""
ENDS_S = 10.0
"""How long a runner may take to end after its connection."""
BEGIN = frozenset({"attach", "prepare"})
"""The verbs that begin, or begin again, a site's part of a run."""

T = TypeVar("T")


class OrderTensors:
    """The blobs of orders; tensors sent to several sites in a row are written once. Thread-safe."""

    def __init__(self, keeping: Keeping) -> None:
        self.keeping = keeping
        self._lock = threading.Lock()
        self._last: tuple[Mapping[str, Any], Blob] | None = None

    def order(
        self, id: pb.OrderId, verb: str, payload: Payload, round_number: int, purpose: str
    ) -> pb.Order:
        """Make an order; its blob is kept until `done` is called. BadPayload."""
        return pb.Order(
            id=id,
            verb=verb,
            kind=payload.kind,
            header_json=header_json(payload.header),
            blob=self._put(payload),
            round=round_number,
            purpose=purpose,
        )

    def _put(self, payload: Payload) -> pb.Blob | None:
        if not payload.tensors:
            return None
        with self._lock:
            if self._last is not None and self._last[0] is payload.tensors:
                blob = blob_message(self._last[1])
                if blob is not None and self.keeping.keep_again(blob.digest):
                    return blob
            tensors = Payload(kind=payload.kind, tensors=payload.tensors)
            done = self.keeping.keep(tensors)
            self._last = payload.tensors, Blob(done.blob.digest, done.blob.size)
            return done.blob

    def done(self, order: pb.Order) -> None:
        if order.blob.digest:
            self.keeping.let_go(order.blob.digest)


@dataclass(slots=True)
class _Life:
    process: RunnerProcess
    connecting: asyncio.Task[RunnerClient]
    ending: asyncio.Task[SiteLost] | None = None
    why: SiteLost | None = None
    """Why it is gone, once known."""


class RunnerLink:
    """A link to one runner, with its own thread until `close`."""

    def __init__(
        self,
        process: RunnerProcess,
        outbox: OrderTensors,
        *,
        start_next: Callable[[], RunnerProcess] | None = None,
        restarts: RestartSettings | None = None,
    ) -> None:
        """`start_next` starts the successor of a runner that died."""
        self._settings = process.settings
        self._outbox = outbox
        self._start_next = start_next
        self._deaths = Deaths(process.settings.site, restarts or RestartSettings(), time.monotonic)
        self._at_work: dict[str, tuple[str, int]] = {}
        """Verbs and rounds of open orders, by key."""
        self._notify: Notify | None = None
        self._closed = False
        self._beginning = asyncio.Lock()
        self._leaving = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"link {process.settings.site}", daemon=True
        )
        self._thread.start()
        self._life = self._run(self._begun(process)).result(CALL_S)

    @property
    def died(self) -> bool:
        """Whether its runner has died and no next one was begun."""
        return isinstance(self._life.why, RunnerDied)

    def ask(
        self, verb: str, payload: Payload, *, key: str, round_number: int = 0, purpose: str = ""
    ) -> Future[Payload]:
        """Send an order to the runner; return the future of its answer."""
        closed = SiteLost(self._settings.site, CLOSED)
        if self._closed:
            return failed(closed)
        id = pb.OrderId(run=self._settings.run, key=key)
        try:
            order = self._outbox.order(id, verb, payload, round_number, purpose)
        except Exception as error:
            return failed(error)
        answer: Future[Payload] = Future()

        def take(asked: Future[Payload]) -> None:
            self._outbox.done(order)
            if (error := closed if asked.cancelled() else asked.exception()) is None:
                answer.set_result(asked.result())
            else:
                answer.set_exception(error)

        self._run(self._asked(order)).add_done_callback(take)
        return answer

    def listen(self, notify: Notify) -> None:
        """Call `notify`, in the link's thread, with the site's events."""
        self._notify = notify

    def close(self, reason: str = "the run has ended") -> None:
        """End the runner and the link; open orders fail. May be called twice."""
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

    def _let_go_soon(self, digest: str) -> None:
        with suppress(RuntimeError):  # once it is closed, the folder of all blobs goes
            self._loop.call_soon_threadsafe(self._outbox.keeping.unused, digest)

    # -- within the thread --------------------------------------------------------------------

    async def _begun(self, process: RunnerProcess) -> _Life:
        connecting = asyncio.create_task(
            RunnerClient.connect(process.folder, on_event=self._happened, within_s=LISTENS_S)
        )
        return _Life(process, connecting)

    async def _asked(self, order: pb.Order) -> Payload:
        runner, answer = await self._answered(order)
        try:
            if answer.WhichOneof("result") == "failure":
                raise error_of(self._settings.site, answer.failure)
            return self._outbox.keeping.read(answer.done, self._let_go_soon)
        finally:
            runner.release(answer.id)

    async def _answered(self, order: pb.Order) -> tuple[RunnerClient, pb.Answer]:
        """Wait for an answer; resend an order that begins a site's part to the next runner."""
        while True:
            begins = self._start_next if order.verb in BEGIN else None
            if begins is not None:
                await self._begin_next(begins)
            try:
                return await self._answered_once(order)
            except RunnersSpent:
                raise
            except RunnerDied:
                if begins is None:
                    raise

    async def _begin_next(self, start: Callable[[], RunnerProcess]) -> None:
        """Start the next runner if this one has died. RunnersSpent, SiteLost."""
        async with self._beginning:
            if self.died:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._deaths.pause_s()):
                        await self._leaving.wait()
                if self._leaving.is_set():
                    raise SiteLost(self._settings.site, CLOSED)
                self._life = await self._begun(await asyncio.to_thread(start))

    async def _answered_once(self, order: pb.Order) -> tuple[RunnerClient, pb.Answer]:
        life, key = self._life, order.id.key
        self._at_work[key] = order.verb, order.round
        try:
            runner = await asyncio.shield(life.connecting)
            return runner, await runner.ask(order)
        except SiteLost as error:
            if self._closed:
                raise
            if life.ending is None:
                place = place_of(self._at_work.values())
                life.ending = asyncio.create_task(self._end_of(life, place, error))
            raise await asyncio.shield(life.ending) from error
        finally:
            self._at_work.pop(key, None)

    async def _end_of(self, life: _Life, place: str, error: SiteLost) -> SiteLost:
        """Find out why a runner ended; called once for each."""
        runner = await _connected(life)
        if ended := await asyncio.to_thread(life.process.wait, ENDS_S):
            how = life.process.how_it_ended()
        else:
            how = "ended the connection and stayed" if runner else "did not listen in time"
            life.process.kill()
            await asyncio.to_thread(life.process.wait, ENDS_S)
        if ended and runner is not None and runner.farewell:
            life.why = error
        else:
            life.why = self._deaths.died(life.process, place if runner else AT_ITS_START, how)
        return life.why

    async def _leave(self, reason: str) -> None:
        self._leaving.set()
        life = self._life
        life.connecting.cancel()
        if (runner := await _connected(life)) is not None:
            runner.end(reason)
            await runner.close()
        else:
            life.process.terminate()
        open_ = asyncio.all_tasks() - {asyncio.current_task()}
        if open_:  # so that they learn that the link is closed
            await asyncio.wait(open_, timeout=CALL_S / 2)

    def _happened(self, event: pb.Happened) -> None:
        if self._notify is None:
            return
        with suppress(BadPayload, BadMessage, json.JSONDecodeError):
            self._notify(Payload(kind=event.kind, header=json.loads(event.header_json)))


async def _connected(life: _Life) -> RunnerClient | None:
    """Wait for a connection attempt; None if it failed or was cancelled."""
    await asyncio.wait([life.connecting])
    if life.connecting.cancelled() or life.connecting.exception() is not None:
        return None
    return life.connecting.result()
