"""CoordinatorService: coordinators send orders to sites and answer users' questions.

Only processes of the mediator's own user can reach its socket. A coordinator is trusted, but its
messages are checked. The newest coordinator of a run replaces the previous one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from ...errors import RequestRefused
from ...proto import federation_pb2 as pb
from ...wire.messages import BadMessage, RunId, check_order, check_protocol, check_run, order_id
from ...wire.payloads import LARGEST_HEADER, BadPayload, header_json, read
from ..connections.authorization import code_of
from ..events import LARGEST_EVENT
from ..orders.coordinator_registry import CoordinatorRegistry
from ..orders.outbox import Outbox
from ..orders.sites import SiteRegistry
from ..orders.traffic_accounting import TrafficAccounting
from ..runs.supervisor import Supervisor
from ..settings import ServerSettings

log = logging.getLogger(__name__)

LARGEST_ORDER = LARGEST_HEADER + (256 << 10)
"""Bytes of an order, which must fit into a message to a site."""


@dataclass(eq=False)
class Coordinators:
    """Serves `Session`, and asks coordinators."""

    _settings: ServerSettings
    _supervisor: Supervisor
    _sites: SiteRegistry
    _attached: CoordinatorRegistry
    _accounting: TrafficAccounting
    _asked: dict[str, tuple[RunId, asyncio.Future[pb.Reply]]] = field(default_factory=dict)

    async def session(self, messages: AsyncIterator[pb.FromCoordinator], context: Any) -> None:
        """Serve one coordinator until it ends."""
        run: RunId | None = None
        outbox: Outbox[pb.ToCoordinator] = Outbox(self._settings.held_back)
        tasks: list[asyncio.Task[None]] = []
        try:
            async with asyncio.timeout(self._settings.hello_s):
                first = await anext(messages, None)
            run = self._run_of(first)
            self._attached.attach(run, outbox)
            log.info("the coordinator of run %s is attached", run)
            for message in self._sites.standings():
                outbox.put(message)
            tasks.append(asyncio.create_task(outbox.send_all(context)))
            tasks.append(asyncio.create_task(self._read(run, messages)))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        except (BadMessage, BadPayload, RequestRefused, TimeoutError) as error:
            log.error("refused the coordinator of run %s: %s", run or "?", error)
            await context.abort(code_of(error), str(error))
        finally:
            outbox.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if run is not None and self._attached.detach(run, outbox):
                log.info("the coordinator of run %s is gone", run)
                self._detached(run)

    def _run_of(self, first: pb.FromCoordinator | None) -> RunId:
        if first is None or first.WhichOneof("content") != "attach":
            raise BadMessage("a coordinator attaches first")
        check_protocol(
            first.attach.protocol, here="this mediator", there=f"coordinator {first.attach.run}"
        )
        run = check_run(first.attach.run)
        if not self._attached.goes_on(run):
            raise RequestRefused(f"run {run} is not going on")
        return run

    async def _read(self, run: RunId, messages: AsyncIterator[pb.FromCoordinator]) -> None:
        async for message in messages:
            self._attached.heard(run)
            match message.WhichOneof("content"):
                case "order":
                    order = message.order.order
                    id = check_order(order)
                    if id.run != run:
                        raise BadMessage(f"the coordinator of run {run} asks for run {id.run}")
                    if order.ByteSize() > LARGEST_ORDER:
                        raise BadMessage(f"an order of over {LARGEST_ORDER} bytes")
                    if order.verb == "check":  # all sites of the gang have committed
                        order.header_json = self._signed(run, order)
                        self._supervisor.queue.complete(run)
                    self._sites.orders.ask(message.order.site, order, id)
                case "withdraw":
                    id = order_id(message.withdraw.id)
                    if id.run == run:
                        self._sites.orders.withdraw(message.withdraw.site, id)
                case "event_json":
                    if len(message.event_json) > LARGEST_EVENT:
                        raise BadMessage(f"an event of over {LARGEST_EVENT} characters")
                    await self._supervisor.said(run, message.event_json)
                case "reply":
                    of, reply = self._asked.get(message.reply.id, (None, None))
                    if reply is not None and of == run and not reply.done():
                        reply.set_result(message.reply)
                case "alive":
                    pass  # recorded above
                case _:
                    raise BadMessage("a coordinator attaches once")

    def _signed(self, run: RunId, order: pb.Order) -> str:
        """Add the run's owner to the header of a spec, for sites' policies."""
        header = dict(read(order.kind, order.header_json, None).header)
        return header_json(header | {"user": self._supervisor.user(run)})

    def _detached(self, run: RunId) -> None:
        self._sites.orders.detached(run)
        for of, reply in self._asked.values():
            if of == run and not reply.done():
                reply.set_exception(
                    RequestRefused(f"the coordinator of run {run} ended meanwhile; ask again")
                )

    async def ask(self, run: RunId, request: pb.Request, timeout_s: float) -> pb.Reply:
        """Ask a run's coordinator, once it is attached.

        TimeoutError; RequestRefused without a run in progress, or if its coordinator cannot answer.
        """
        request.id = secrets.token_hex(8)
        reply: asyncio.Future[pb.Reply] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                if not await self._attached.listens(run):
                    raise RequestRefused(f"run {run} does not go on: it has no coordinator to ask")
                self._asked[request.id] = (run, reply)
                if not self._attached.tell(run, pb.ToCoordinator(request=request)):
                    raise RequestRefused(
                        f"the coordinator of run {run} takes no more questions now"
                    )
                return await reply
        except TimeoutError:
            raise TimeoutError(f"run {run} did not answer within {timeout_s:g} s") from None
        finally:
            self._asked.pop(request.id, None)

    def tell_bytes(self) -> None:
        """Send every coordinator the bytes counted since the last time."""
        for run in self._attached.attached_runs():
            if (counted := self._accounting.tell(run)) is not None:
                self._attached.tell(run, counted)
