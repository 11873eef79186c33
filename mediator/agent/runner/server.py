"""RunnerServer: a runner's thread that talks to its driver and watches its leases.

It passes each order once to the working thread, and keeps the answer until the driver has taken it.
A new driver replaces the previous one. Only processes of the same user can reach the socket.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ...core.exchange import Effect, Responder
from ...core.leases import LeaseAct, Leases
from ...proto import federation_pb2 as pb
from ...wire.local_socket import LOCAL_OPTIONS, RUNNER_SOCKET, local_address
from .process import PROTOCOL, RunnerSettings

TICK_S = 0.1
"""How often leases are checked."""
MOST_UNSENT = 1_000
"""Messages that may wait for a slow driver; more events are dropped."""
CLOSE_S = 2.0

Driver = asyncio.Queue[pb.FromRunner | None]
"""Unsent messages to a driver; None ends its session."""


class OrderHandler(Protocol):
    """Executes a driver's orders; called in the server's thread, must not block."""

    def work(self, order: pb.Order) -> None:
        """Begin a new order; call `RunnerServer.answer` later."""

    def taken(self, answer: pb.Answer) -> None:
        """Drop an answer's blob, since the driver has the answer."""

    def lapse(self) -> None:
        """Release the promise, whose lease has ended."""

    def end(self, reason: str) -> None:
        """Release everything, and end."""


class RunnerServer:
    """The socket of a runner; call `answer`, `promised`, `happened` and `close` from any thread."""

    def __init__(
        self,
        folder: Path,
        works: OrderHandler,
        settings: RunnerSettings,
        clock: Callable[[], float],
    ) -> None:
        self._folder, self._works = folder, works
        self._settings, self._clock = settings, clock
        now = clock()
        self._leases = Leases(
            lease_s=settings.lease_s, orphan_s=settings.orphan_s, renewed_at=now, alone_since=now
        )
        self._orders = Responder[str, pb.Answer]()
        self._driver: Driver | None = None
        self._over = False
        self._loop = asyncio.new_event_loop()
        self._listening: Future[None] = Future()
        self._thread = threading.Thread(target=self._live, name="server", daemon=True)

    def open(self) -> None:
        """Listen. RuntimeError if the socket cannot be bound."""
        self._thread.start()
        self._listening.result()

    def answer(self, answer: pb.Answer) -> None:
        """Keep an answer, and send it to the driver, now or once one connects."""
        self._soon(lambda: self._answer(answer))

    def promised(self, promise_s: float | None) -> None:
        """Watch a promise that lapses after `promise_s` without a commit; None to watch none."""
        now = self._clock()
        self._soon(lambda: self._look(self._leases.promised(now, promise_s)))

    def happened(self, event: pb.Happened) -> None:
        self._soon(lambda: self._tell(event))

    def close(self, reason: str) -> None:
        """Tell the driver why the runner ends, and end the thread; may be called twice."""
        if self._thread.is_alive():
            self._soon(lambda: self._close(reason))
            self._thread.join(CLOSE_S)

    def _soon(self, act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: there is no driver
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
        # Imported late: processes that only start runners import this module too.
        import grpc.aio

        from ...wire.rpc import RUNNER, handler

        self._folder.chmod(0o700)
        with local_address(self._folder, RUNNER_SOCKET) as address:
            server = grpc.aio.server(options=LOCAL_OPTIONS)
            server.add_generic_rpc_handlers((handler(RUNNER, self),))
            server.add_insecure_port(address)
            await server.start()
            self._listening.set_result(None)
            await self._watch_leases()
            await server.stop(CLOSE_S / 2)

    async def _watch_leases(self) -> None:
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

    async def session(self, messages: AsyncIterator[pb.ToRunner], context: Any) -> None:
        """RunnerService.Session: serve one driver until it leaves or is replaced."""
        import grpc

        first = await anext(messages, None)
        if first is None or first.WhichOneof("content") != "greeting":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a driver greets first")
        elif first.greeting.protocol != PROTOCOL:
            reason = f"the runner speaks protocol {PROTOCOL}, its driver {first.greeting.protocol}"
            await context.write(pb.FromRunner(farewell=pb.Farewell(reason=reason, final=True)))
        else:
            await self._drive(self._welcome(first.greeting), messages, context)

    async def _drive(
        self, driver: Driver, messages: AsyncIterator[pb.ToRunner], context: Any
    ) -> None:
        async def write() -> None:
            while (message := await driver.get()) is not None:
                await context.write(message)

        async def read() -> None:
            async for message in messages:
                if self._driver is driver:
                    self._take(message)

        tasks = [asyncio.create_task(write()), asyncio.create_task(read())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._driver is driver:
                self._driver = None
                self._leases = self._leases.left(self._clock())

    def _welcome(self, greeting: pb.Greeting) -> Driver:
        self._leave("another driver has taken over", final=False)
        self._driver = driver = Driver()
        self._leases = self._leases.joined().renewed(self._clock(), greeting.lease.lease_s)
        self._say(pb.FromRunner(held=self._held()))
        for answer in self._orders.replies().values():
            self._say(pb.FromRunner(answer=answer))
        return driver

    def _held(self) -> pb.Held:
        def ids(keys: Iterable[str]) -> list[pb.OrderId]:
            return [pb.OrderId(run=self._settings.run, key=key) for key in keys]

        return pb.Held(
            protocol=PROTOCOL,
            run=self._settings.run,
            site=self._settings.site,
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
        if self._driver is not None and self._driver.qsize() < MOST_UNSENT:
            self._say(pb.FromRunner(happened=event))

    def _say(self, message: pb.FromRunner) -> None:
        if self._driver is not None:
            self._driver.put_nowait(message)

    def _leave(self, reason: str, *, final: bool) -> None:
        """Tell the driver, if any, why its session ends, and end it."""
        if self._driver is not None:
            self._say(pb.FromRunner(farewell=pb.Farewell(reason=reason, final=final)))
            self._driver.put_nowait(None)

    def _close(self, reason: str) -> None:
        self._over = True
        self._leave(reason, final=True)
