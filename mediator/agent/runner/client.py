"""RunnerClient: a driver's end of a runner's socket, for an event loop.

A runner executes an order once per key; asking again returns the same answer. When the runner ends
or another driver takes over, all open orders fail with SiteLost, which quotes the runner's log.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

from ...core.exchange import Effect, OpenRequest, Requester
from ...errors import SiteLost
from ...proto import federation_pb2 as pb
from ...wire.local_socket import (
    LARGEST_LOCAL_MESSAGE,
    LOCAL_OPTIONS,
    NO_FORK_HANDLERS,
    RUNNER_SOCKET,
    local_address,
)
from ...wire.messages import BadMessage
from .process import POLL_S, PROTOCOL, RunnerProcess

LISTENS_S = 60.0
"""How long a new runner may take to listen."""
WELCOME_S = 10.0
LARGEST_ORDER = LARGEST_LOCAL_MESSAGE - (1 << 10)
"""Bytes. For a larger one, gRPC would end the session and so all other orders."""
CLOSE_S = 2.0
"""How long sending the last messages may take."""

OnEvent = Callable[[pb.Happened], None]


class RunnerClient:
    """A connection to the runner of a folder; used within one event loop."""

    def __init__(self, process: RunnerProcess, on_event: OnEvent | None) -> None:
        self.process = process
        self._on_event = on_event
        self._asked = Requester[str, pb.Order, pb.Answer]()
        self._answers: dict[str, asyncio.Future[pb.Answer]] = {}
        self._unsent = asyncio.Queue[pb.ToRunner | None]()
        """None ends it."""
        self._held: asyncio.Future[pb.Held] = asyncio.get_running_loop().create_future()
        self._held.add_done_callback(_looked_at)
        self._absent = False
        self.farewell = ""
        """Why the runner ended, if it said so."""
        self._lost: SiteLost | None = None
        self._listener = asyncio.create_task(self._listen())

    @classmethod
    async def connect(
        cls,
        folder: Path,
        *,
        lease_s: float = 0.0,
        on_event: OnEvent | None = None,
        within_s: float = LISTENS_S,
    ) -> Self:
        """Become the driver of the runner in a folder, which may be about to start.

        The runner lives for `lease_s` after each `renew`; 0 for as long as this client is
        connected. SiteLost if there is no runner, or it does not answer in time.
        """
        process = RunnerProcess(folder)
        deadline = time.monotonic() + within_s
        while True:
            if (folder / RUNNER_SOCKET).exists():
                runner = cls(process, on_event)
                try:
                    await runner._greet(lease_s)
                    return runner
                except BaseException as error:
                    await runner.close()
                    if not (runner._absent and isinstance(error, SiteLost)):
                        raise
            if not process.alive():
                raise lost(process, "its runner has ended")
            if time.monotonic() >= deadline:
                raise lost(process, f"its runner does not listen after {within_s:g} s")
            await asyncio.sleep(POLL_S)

    async def _greet(self, lease_s: float) -> None:
        greeting = pb.Greeting(protocol=PROTOCOL, lease=pb.Lease(lease_s=lease_s))
        self._send(pb.ToRunner(greeting=greeting))
        try:
            await asyncio.wait_for(asyncio.shield(self._held), WELCOME_S)
        except TimeoutError:
            reason = f"its runner does not answer after {WELCOME_S:g} s"
            raise lost(self.process, reason) from None

    @property
    def held(self) -> pb.Held:
        """The orders that the runner had on connecting; `answer_of` gets their answers."""
        return self._held.result()

    async def ask(self, order: pb.Order) -> pb.Answer:
        """Have the runner execute an order, once per key. BadMessage if it is too large."""
        if (size := order.ByteSize()) > LARGEST_ORDER:
            raise BadMessage(f"an order of {size} bytes, over {LARGEST_ORDER}")
        return await self._answer_to(order.id.key, order)

    async def answer_of(self, id: pb.OrderId) -> pb.Answer:
        """The answer of an order that the runner has; KeyError if it has no such order."""
        if id.key not in self._asked.open:
            raise KeyError(id.key)
        return await self._answer_to(id.key, None)

    async def _answer_to(self, key: str, order: pb.Order | None) -> pb.Answer:
        effect, request = self._asked.ask(key, order)
        answer = self._answers.get(key)
        if answer is None:
            if self._lost is not None:
                raise self._lost
            answer = self._answers[key] = asyncio.get_running_loop().create_future()
            answer.add_done_callback(_looked_at)
        if effect is Effect.DELIVER:
            self._deliver(request)
        elif effect is Effect.SEND and order is not None:
            self._send(pb.ToRunner(order=order))
            self._asked.sent(key)
        return await asyncio.shield(answer)

    def release(self, id: pb.OrderId) -> None:
        """Let the runner forget an order whose answer is no longer needed."""
        effect, _ = self._asked.release(id.key)
        self._answers.pop(id.key, None)
        if effect is Effect.ACKNOWLEDGE:
            self._acknowledge(id)

    def renew(self, lease_s: float) -> None:
        self._send(pb.ToRunner(lease=pb.Lease(lease_s=lease_s)))

    def end(self, reason: str) -> None:
        """Tell the runner to release what it holds, and to end."""
        self._send(pb.ToRunner(farewell=pb.Farewell(reason=reason, final=True)))

    async def gone(self) -> SiteLost:
        """Wait for the end of the connection, and return its reason."""
        await asyncio.wait([self._listener])
        return self._lost or lost(self.process, "the connection was closed here")

    async def close(self) -> None:
        """Disconnect; the runner continues until its lease or its time without a driver ends."""
        self._fail(lost(self.process, "the connection was closed here"))
        await asyncio.wait([self._listener], timeout=CLOSE_S)
        self._listener.cancel()
        await asyncio.wait([self._listener])

    async def _listen(self) -> None:
        # Processes that drive no runner need no gRPC, and may fork.
        os.environ.update(NO_FORK_HANDLERS)
        import grpc.aio

        from ...wire.rpc import RUNNER, Stub

        reason = "its runner has ended"
        with local_address(self.process.folder, RUNNER_SOCKET) as address:
            async with grpc.aio.insecure_channel(address, options=LOCAL_OPTIONS) as channel:
                try:
                    async for message in Stub(channel, RUNNER).session(self._outgoing()):
                        self._take(message)
                except grpc.aio.AioRpcError as error:
                    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                        self._absent = not self._held.done()
                    else:
                        reason = f"its runner does not speak as it should: {error.details()}"
                finally:
                    self._fail(lost(self.process, self.farewell or reason))

    async def _outgoing(self) -> AsyncIterator[pb.ToRunner]:
        while (message := await self._unsent.get()) is not None:
            yield message

    def _take(self, message: pb.FromRunner) -> None:
        match message.WhichOneof("content"):
            case "held" if not self._held.done():
                keys = [id.key for id in (*message.held.at_work, *message.held.answered)]
                self._asked.connected(keys, lambda key: True, len(keys))
                self._held.set_result(message.held)
            case "answer":
                effect, request = self._asked.replied(message.answer.id.key, message.answer)
                if effect is Effect.DELIVER:
                    self._deliver(request)
                elif effect is Effect.ACKNOWLEDGE:
                    self._acknowledge(message.answer.id)
            case "happened" if self._on_event is not None:
                self._on_event(message.happened)
            case "farewell":
                self.farewell = message.farewell.reason

    def _deliver(self, request: OpenRequest[str, pb.Order, pb.Answer]) -> None:
        answer = self._answers[request.key]
        if request.reply is not None and not answer.done():
            answer.set_result(request.reply)

    def _acknowledge(self, id: pb.OrderId) -> None:
        self._send(pb.ToRunner(answer_taken=pb.AnswerTaken(id=id)))

    def _send(self, message: pb.ToRunner) -> None:
        if self._lost is None:
            self._unsent.put_nowait(message)

    def _fail(self, why: SiteLost) -> None:
        self._lost = self._lost or why
        self._unsent.put_nowait(None)
        if not self._held.done():
            self._held.set_exception(self._lost)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._lost)


def _looked_at(answer: asyncio.Future[Any]) -> None:
    """Mark a failure as retrieved: its waiter may be gone."""
    if not answer.cancelled():
        answer.exception()


def lost(process: RunnerProcess, reason: str) -> SiteLost:
    """Make the error for a site whose runner is gone, with the end of its log."""
    return SiteLost(process.settings.site, f"{reason}{process.quoted()}")
