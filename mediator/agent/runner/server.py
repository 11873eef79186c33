"""RunnerServer: the thread of a runner that speaks to its driver and watches its leases.

It takes orders, each once, and hands them to the thread that works; what that answers is kept and
sent until it is taken. There is one driver at a time: who connects last. Only processes of our own
user are listened to.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ...core.exchange import Effect, Responder
from ...core.leases import LeaseAct, Leases
from ...proto import federation_pb2 as pb
from .errors import BadFrame
from .process import SOCKET, address
from .protocol import PROTOCOL, Frames, framed

TICK_S = 0.1
"""How often leases are looked at."""
READ_BYTES = 1 << 16
MOST_UNSENT = 4 << 20
"""Bytes that wait for a driver which does not read; events beyond that are dropped."""
CLOSE_S = 2.0
_CREDENTIALS = struct.Struct("3i")


class OrderHandler(Protocol):
    """Whoever does what comes in; called from the server's thread, and returns at once."""

    def work(self, order: pb.Order) -> None:
        """Do a new order, and `answer` it some time."""

    def taken(self, answer: pb.Answer) -> None:
        """Whoever drives us has that answer: it is not needed any more."""

    def lapse(self) -> None:
        """The promise's lease has ended."""

    def end(self, reason: str) -> None:
        """Give everything back, and end."""


class RunnerServer:
    """The socket of a runner; `answer` and what follows it may be called from any thread."""

    def __init__(
        self,
        folder: Path,
        works: OrderHandler,
        *,
        run: str,
        site: str,
        lease_s: float,
        orphan_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._folder, self._works = folder, works
        self._run, self._site = run, site
        self._clock = clock
        now = clock()
        self._leases = Leases(lease_s=lease_s, orphan_s=orphan_s, renewed_at=now, alone_since=now)
        self._orders = Responder[str, pb.Answer]()
        self._driver: asyncio.StreamWriter | None = None
        self._over = False
        self._loop = asyncio.new_event_loop()
        self._listening: Future[None] = Future()
        self._thread = threading.Thread(target=self._live, name="server", daemon=True)

    def open(self) -> None:
        """Listen from now on. OSError if the socket cannot be bound."""
        self._thread.start()
        self._listening.result()

    def answer(self, answer: pb.Answer) -> None:
        """Keep an answer, and send it to whoever is connected or will be."""
        self._soon(lambda: self._answer(answer))

    def promised(self, promise_s: float | None) -> None:
        """A promise was made that lasts so long without a commit; None: there is none now."""
        now = self._clock()
        self._soon(lambda: self._look(self._leases.promised(now, promise_s)))

    def happened(self, event: pb.Happened) -> None:
        """Tell whoever is connected."""
        self._soon(lambda: self._tell(event))

    def close(self, reason: str) -> None:
        """Say why it is over, and end the thread; may be called again."""
        if self._thread.is_alive():
            self._soon(lambda: self._close(reason))
            self._thread.join(CLOSE_S)

    def _soon(self, act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            self._loop.call_soon_threadsafe(act)

    # -- within the thread --------------------------------------------------------------------

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            if self._listening.done():
                raise
            self._listening.set_exception(error)
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with address(self._folder) as path:
            listening.bind(path)
        os.chmod(self._folder / SOCKET, 0o600)
        server = await asyncio.start_unix_server(self._connected, sock=listening)
        self._listening.set_result(None)
        async with server:
            ending = False
            while not self._over:
                await asyncio.sleep(TICK_S)
                match self._leases.due(self._clock()):
                    case (LeaseAct.RELEASE, _):
                        self._leases = self._leases.promised(0.0, None)
                        self._works.lapse()
                    case (LeaseAct.END, reason) if not ending:
                        ending = True
                        self._works.end(reason)

    def _look(self, leases: Leases) -> None:
        self._leases = leases

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if _user_of(writer) == os.getuid():
                await self._converse(reader, writer)
        except (OSError, BadFrame):
            pass  # the driver is gone, or is none
        finally:
            if self._driver is writer:
                self._driver = None
                self._leases = self._leases.left(self._clock())
            with suppress(OSError):
                writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = Frames(pb.ToRunner)
        while data := await reader.read(READ_BYTES):
            for message in frames.feed(data):
                if self._driver is not writer:
                    if message.WhichOneof("content") != "greeting":
                        return
                    self._welcome(message.greeting, writer)
                    if self._driver is not writer:
                        return
                else:
                    self._take(message)

    def _welcome(self, greeting: pb.Greeting, writer: asyncio.StreamWriter) -> None:
        if greeting.protocol != PROTOCOL:
            reason = f"the runner speaks protocol {PROTOCOL}, its driver {greeting.protocol}"
            _send(writer, pb.FromRunner(farewell=pb.Farewell(reason=reason, final=True)))
            return
        if self._driver is not None:
            reason = "another driver has taken over"
            _send(self._driver, pb.FromRunner(farewell=pb.Farewell(reason=reason)))
            self._driver.close()
        self._driver = writer
        self._leases = self._leases.joined().renewed(self._clock(), greeting.lease.lease_s)
        _send(writer, pb.FromRunner(held=self._held()))
        for answer in self._orders.replies().values():
            _send(writer, pb.FromRunner(answer=answer))

    def _held(self) -> pb.Held:
        def ids(keys: Iterable[str]) -> list[pb.OrderId]:
            return [pb.OrderId(run=self._run, key=key) for key in keys]

        return pb.Held(
            protocol=PROTOCOL,
            run=self._run,
            site=self._site,
            at_work=ids(self._orders.at_work()),
            answered=ids(self._orders.replies()),
        )

    def _take(self, message: pb.ToRunner) -> None:
        match message.WhichOneof("content"):
            case "order":
                key = message.order.id.key
                match self._orders.asked(key):
                    case Effect.EXECUTE:
                        self._works.work(message.order)
                    case Effect.REPLY:
                        self._say(pb.FromRunner(answer=self._orders.replies()[key]))
            case "answer_taken":
                key = message.answer_taken.id.key
                answer = self._orders.replies().get(key)
                if self._orders.released(key) is Effect.FORGET and answer is not None:
                    self._works.taken(answer)
            case "lease":
                self._leases = self._leases.renewed(self._clock(), message.lease.lease_s)
            case "farewell":
                self._works.end(message.farewell.reason or "its driver wanted it to end")

    def _answer(self, answer: pb.Answer) -> None:
        match self._orders.replied(answer.id.key, answer):
            case Effect.REPLY:
                self._say(pb.FromRunner(answer=answer))
            case Effect.FORGET:
                self._works.taken(answer)

    def _tell(self, event: pb.Happened) -> None:
        driver = self._driver
        if driver is not None and driver.transport.get_write_buffer_size() < MOST_UNSENT:
            _send(driver, pb.FromRunner(happened=event))

    def _say(self, message: pb.FromRunner) -> None:
        if self._driver is not None:
            _send(self._driver, message)

    def _close(self, reason: str) -> None:
        self._over = True
        self._say(pb.FromRunner(farewell=pb.Farewell(reason=reason, final=True)))
        if self._driver is not None:
            self._driver.close()


def _send(writer: asyncio.StreamWriter, message: pb.FromRunner) -> None:
    if not writer.is_closing():
        writer.write(framed(message))


def _user_of(writer: asyncio.StreamWriter) -> int:
    """Whose process is at the other end."""
    peer = writer.get_extra_info("socket")
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(found)
    return int(user)
