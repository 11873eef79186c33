"""RunnerClient: a driver's end of a runner's socket, for an event loop.

An order that the runner has already is not worked on again: its answer comes to whoever asks with
its key. When the runner is gone, or another driver has taken over, all that is open fails with
SiteLost, which says why, with the last lines of the runner's log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from ...core.exchange import Effect, OpenRequest, Requester
from ...errors import SiteLost
from ...proto import federation_pb2 as pb
from .errors import BadFrame
from .process import POLL_S, RunnerProcess, address
from .protocol import PROTOCOL, Frames, framed

READ_BYTES = 1 << 16
LISTENS_S = 60.0
"""How long a runner that was just started may take until it listens."""
WELCOME_S = 10.0

OnEvent = Callable[[pb.Happened], None]


class RunnerClient:
    """A connection to the runner of a folder; used within one event loop."""

    def __init__(
        self,
        process: RunnerProcess,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_event: OnEvent | None,
    ) -> None:
        self.process = process
        self._reader, self._writer = reader, writer
        self._on_event = on_event
        self._asked = Requester[str, pb.Order, pb.Answer]()
        self._answers: dict[str, asyncio.Future[pb.Answer]] = {}
        self._held: asyncio.Future[pb.Held] = asyncio.get_running_loop().create_future()
        self.farewell = ""
        """Why it ended, if it could say so."""
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

        It may then hold what it holds for `lease_s` without another `renew`; 0 for as long as we
        are connected. SiteLost if there is no runner, or it does not answer in time.
        """
        process = RunnerProcess(folder)
        deadline = time.monotonic() + within_s
        while True:
            try:
                with address(folder) as path:
                    reader, writer = await asyncio.open_unix_connection(path)
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if not process.alive():
                    raise lost(process, "its runner has ended") from None
                if time.monotonic() >= deadline:
                    reason = f"its runner does not listen after {within_s:g} s"
                    raise lost(process, reason) from None
                await asyncio.sleep(POLL_S)
        runner = cls(process, reader, writer, on_event)
        greeting = pb.Greeting(protocol=PROTOCOL, lease=pb.Lease(lease_s=lease_s))
        runner._send(pb.ToRunner(greeting=greeting))
        try:
            await asyncio.wait_for(asyncio.shield(runner._held), WELCOME_S)
        except TimeoutError:
            await runner.close()
            raise lost(process, f"its runner does not answer after {WELCOME_S:g} s") from None
        except BaseException:
            await runner.close()
            raise
        return runner

    @property
    def held(self) -> pb.Held:
        """What the runner had of orders when we connected; `answer_of` gives their answers."""
        return self._held.result()

    async def ask(self, order: pb.Order) -> pb.Answer:
        """Have the runner work on an order, unless it does or did so; its answer."""
        return await self._answer_to(order.id.key, order)

    async def answer_of(self, id: pb.OrderId) -> pb.Answer:
        """The answer of an order that the runner has; KeyError if it has none of that key."""
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
        """Nobody needs the answer, or needs it any longer: the runner may forget the order."""
        effect, _ = self._asked.release(id.key)
        self._answers.pop(id.key, None)
        if effect is Effect.ACKNOWLEDGE:
            self._acknowledge(id)

    def renew(self, lease_s: float) -> None:
        """What the runner holds may go on for so long."""
        self._send(pb.ToRunner(lease=pb.Lease(lease_s=lease_s)))

    def end(self, reason: str) -> None:
        """Have the runner give everything back and end."""
        self._send(pb.ToRunner(farewell=pb.Farewell(reason=reason, final=True)))

    async def gone(self) -> SiteLost:
        """Wait until the connection has ended; why it did."""
        await asyncio.wait([self._listener])
        return self._lost or lost(self.process, "the connection was closed here")

    async def close(self) -> None:
        """Leave; the runner goes on until its lease ends or nobody has come for too long."""
        self._listener.cancel()
        await asyncio.wait([self._listener])
        self._fail(lost(self.process, "the connection was closed here"))
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _listen(self) -> None:
        frames = Frames(pb.FromRunner)
        reason = "its runner has ended"
        try:
            while data := await self._reader.read(READ_BYTES):
                for message in frames.feed(data):
                    self._take(message)
        except BadFrame as error:
            reason = f"its runner does not speak as it should: {error}"
        except OSError:
            pass  # it was killed while bytes of ours were on their way
        self._fail(lost(self.process, self.farewell or reason))
        self._writer.close()

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
        if self._lost is None and not self._writer.is_closing():
            self._writer.write(framed(message))

    def _fail(self, why: SiteLost) -> None:
        self._lost = self._lost or why
        if not self._held.done():
            self._held.set_exception(self._lost)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._lost)


def _looked_at(answer: asyncio.Future[pb.Answer]) -> None:
    """Nobody may be there any more to be told of a failure."""
    if not answer.cancelled():
        answer.exception()


def lost(process: RunnerProcess, reason: str) -> SiteLost:
    """A site whose runner is gone, with what its log said last."""
    return SiteLost(process.settings.site, f"{reason}{process.quoted()}")
