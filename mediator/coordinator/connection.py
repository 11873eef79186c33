"""MediatorConnection: a coordinator's thread-safe end of its conversation with the mediator.

Each order gives a future of its answer. A broken conversation is not resumed: this process ends,
and the mediator starts another, which asks again under the same keys.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import grpc

from ..agent.runner.link import OrderTensors
from ..core.links import LinkUse
from ..core.traffic import Direction, Flow, TrafficLedger
from ..errors import AnswerUnreadable, MediatorError, MediatorUnreachable
from ..federation.futures import failed
from ..proto import federation_pb2 as pb
from ..wire.blobs.blob import LARGEST_BLOB
from ..wire.blobs.store import BlobStore
from ..wire.failures import error_of, told
from ..wire.local_socket import COORDINATORS_SOCKET, LOCAL_OPTIONS, local_address
from ..wire.messages import (
    PROTOCOL,
    BadMessage,
    SiteName,
    SiteStanding,
    check_run,
    check_site,
    id_message,
    order_id,
    payload_of,
    standing_of,
)
from ..wire.payloads import BadPayload, read
from ..wire.references import Keeping
from ..wire.rpc import COORDINATOR, Stub
from ..workload import Notify, Payload
from .reply_blobs import ReplyBlobs
from .site_board import SiteBoard

log = logging.getLogger(__name__)

CONNECT_S = 30.0
"""How long the mediator may take to answer."""
MOST_UNSENT = 10_000
"""Messages that may wait to be sent; more block their sender."""
SEND_S = 60.0
"""The longest that a sender blocks."""
JOIN_S = 5.0
ALIVE_S = 15.0
"""How often this process reports that it lives."""
LONGEST_HAPPENED = 64 << 10
"""Characters of a site's event; honest ones need hundreds."""


def terminate_this_process(reason: str) -> None:
    """End this coordinator after a broken conversation; the mediator restarts it."""
    log.error("the conversation with the mediator is over: %s", reason)
    os.kill(os.getpid(), signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class RunQuery:
    """A user's question to this run; call `answer` or `fail` once."""

    payload: Payload
    answer: Callable[[Payload], None]
    fail: Callable[[BaseException], None]


@dataclass(slots=True)
class _Waiting:
    """Futures for the answer to one order; never resent, since a broken link ends the process."""

    order: pb.Order
    """Its blob is kept until the answer arrives."""
    futures: list[Future[Payload]] = field(default_factory=list)


class MediatorConnection:
    """One conversation, usable from any thread; callbacks run in its own."""

    def __init__(
        self,
        folder: Path,
        run: str,
        *,
        on_broken: Callable[[str], None] = terminate_this_process,
    ) -> None:
        """Connect to the mediator of a folder. MediatorUnreachable if it does not answer."""
        self.run = check_run(run)
        self.blobs = BlobStore(folder / "blobs", LARGEST_BLOB)
        self._on_broken = on_broken
        self._outgoing: queue.Queue[pb.FromCoordinator | None] = queue.Queue(MOST_UNSENT)
        self._keeping = Keeping(self.blobs, discard=True)
        self._outbox = OrderTensors(self._keeping)
        self._unused: deque[str] = deque()
        """Blobs of answers whose tensors are no longer used."""
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, str], _Waiting] = {}
        self._listening: dict[str, Notify] = {}
        self._board = SiteBoard()
        self.wait_for_sites = self._board.wait_for
        self._ledger = TrafficLedger()
        self.on_link_use: Callable[[LinkUse], None] = lambda use: None
        """Called about once a second with the use of sites' links by blobs."""
        self._on_stop: Callable[[str], None] = lambda reason: None
        self._stop_reason: str | None = None
        self._over = ""
        self._closing = False
        self._replies = ReplyBlobs(self._keeping)
        self.questions: queue.Queue[RunQuery] = queue.Queue()
        """Users' questions to this run, in order."""
        self._undo = ExitStack()
        self._address = self._undo.enter_context(local_address(folder, COORDINATORS_SOCKET))
        self._channel = grpc.insecure_channel(self._address, options=LOCAL_OPTIONS)
        self._undo.callback(self._channel.close)
        self._call: Any = None
        self._reader = threading.Thread(target=self._read, name="mediator", daemon=True)
        self._closed = threading.Event()
        self._living = threading.Thread(target=self._live, name="alive", daemon=True)
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        self._put(pb.FromCoordinator(attach=pb.Attach(run=self.run, protocol=PROTOCOL)))
        self._call = Stub(self._channel, COORDINATOR).session(
            iter(self._outgoing.get, None), wait_for_ready=True
        )
        self._reader.start()
        self._living.start()
        if not self._board.told.wait(CONNECT_S) or self._over:
            why = self._over or f"no word within {CONNECT_S:g} s"
            raise MediatorUnreachable(self._address, why)

    # -- sites ------------------------------------------------------------------------------------

    @property
    def sites(self) -> Mapping[SiteName, SiteStanding]:
        return self._board.sites

    def link(self, site: str) -> SiteLink:
        """A link to a site's part of this run; the site may be away."""
        return SiteLink(self, check_site(site))

    def on_site_change(self, callback: Callable[[SiteStanding], None]) -> None:
        """Set a callback for each site that changes from now on; it must not wait for an answer."""
        self._board.on_change = callback

    # -- the run ----------------------------------------------------------------------------------

    def emit(self, event: Mapping[str, Any]) -> None:
        """Send an event, as `run --json` prints it."""
        self._put(pb.FromCoordinator(event_json=json.dumps(event)))

    def on_stop(self, callback: Callable[[str], None]) -> None:
        """Set a callback for the user's stop, with its reason; called at once after a stop."""
        with self._lock:
            self._on_stop, reason = callback, self._stop_reason
        if reason is not None:
            callback(reason)

    def drain_flows(self) -> list[tuple[Flow, int]]:
        """Bytes that crossed sites' boundaries since the last call, with headers, sorted."""
        with self._lock:
            return self._ledger.drain()

    def close(self) -> None:
        """End the conversation after sending what waits; may be called twice."""
        self._closing = True
        self._closed.set()
        with suppress(queue.Full):
            self._outgoing.put(None, timeout=JOIN_S)
        # A mediator that never answered will not end the call.
        if self._board.told.is_set() and threading.current_thread() is not self._reader:
            self._reader.join(JOIN_S)
        self._undo.close()
        self._keeping.close()
        self._end("the connection was closed here")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- orders -----------------------------------------------------------------------------------

    def ask(
        self,
        site: SiteName,
        verb: str,
        payload: Payload,
        *,
        key: str,
        round_number: int = 0,
        purpose: str = "",
    ) -> Future[Payload]:
        """Send an order to a site, once per key; return the future of its answer."""
        id = pb.OrderId(run=self.run, key=key)
        try:
            order = self._outbox.order(id, verb, payload, round_number, purpose)
        except Exception as error:
            return failed(error)
        future: Future[Payload] = Future()
        with self._lock:
            over, asked = self._over, (site, key) in self._waiting
            if not over:
                self._waiting.setdefault((site, key), _Waiting(order)).futures.append(future)
        if over or asked:
            self._outbox.done(order)
        else:
            self._put(pb.FromCoordinator(order=pb.SiteOrder(site=site, order=order)))
        return failed(MediatorUnreachable(self._address, over)) if over else future

    def listen(self, site: SiteName, notify: Notify) -> None:
        """Set the callback for a site's events."""
        with self._lock:
            self._listening[site] = notify

    def _live(self) -> None:
        while not self._closed.wait(ALIVE_S) and not self._over:
            with suppress(queue.Full):  # a full queue proves as much
                self._outgoing.put_nowait(pb.FromCoordinator(alive=pb.Alive()))

    def _put(self, message: pb.FromCoordinator) -> None:
        try:
            self._outgoing.put(message, timeout=SEND_S)
        except queue.Full:
            self._end(f"nothing was sent for {SEND_S:g} s")

    # -- what comes -------------------------------------------------------------------------------

    def _read(self) -> None:
        reason = "the mediator ended it"
        try:
            for message in self._call:
                self._take(message)
        except grpc.RpcError as error:
            reason = str(error.details()) if isinstance(error, grpc.Call) else str(error)
        except Exception as error:
            log.exception("the conversation with the mediator cannot go on")
            reason = f"{type(error).__name__}: {error}"
        broken = not self._closing
        self._end(reason)
        if broken and self._board.told.is_set():
            self._on_broken(reason)
        self._board.told.set()

    def _take(self, message: pb.ToCoordinator) -> None:
        while self._unused:
            self._keeping.unused(self._unused.popleft())
        match message.WhichOneof("content"):
            case "sites":
                self._board.update(standing_of(each) for each in message.sites.sites)
            case "answer":
                self._take_answer(message.answer)
            case "happened":
                self._take_happened(message.happened)
            case "stop":
                with self._lock:
                    self._stop_reason, callback = message.stop.reason, self._on_stop
                callback(message.stop.reason)
            case "request":
                self._take_request(message.request)
            case "bytes":
                with self._lock:
                    for each in message.bytes.flows:
                        direction = Direction(each.direction)
                        self._ledger.book(
                            Flow(each.round, each.site, direction, each.purpose), each.bytes
                        )
                for used in message.bytes.links:
                    self.on_link_use(LinkUse(used.round, used.site, used.bytes, used.seconds))

    def _take_answer(self, answer: pb.SiteAnswer) -> None:
        id = order_id(answer.answer.id)
        with self._lock:
            waiting = self._waiting.pop((answer.site, id.key), None)
        if waiting is not None:
            self._outbox.done(waiting.order)
        made: Payload | Exception
        if answer.answer.WhichOneof("result") == "failure":
            made = error_of(answer.site, answer.answer.failure)
        else:
            try:
                made = self._keeping.read(answer.answer.done, self._unused.append)
            except (BadPayload, BadMessage) as error:
                log.warning("an answer of site %s cannot be read: %s", answer.site, error)
                made = AnswerUnreadable(answer.site, type(error).__name__, str(error))
        withdraw = pb.Withdraw(site=answer.site, id=id_message(id))
        self._put(pb.FromCoordinator(withdraw=withdraw))
        for future in () if waiting is None else waiting.futures:
            _settle(future, made)

    def _take_happened(self, happened: pb.SiteHappened) -> None:
        with self._lock:
            notify = self._listening.get(happened.site)
        if notify is None:
            return
        found = happened.happened
        if len(found.header_json) > LONGEST_HAPPENED:
            log.warning("an event of site %s is too long, and is dropped", happened.site)
            return
        try:
            notify(read(found.kind, found.header_json, None))
        except BadPayload as error:
            log.warning("an event of site %s cannot be read: %s", happened.site, error)
        except Exception:
            # All sites share the conversation: one bad event must not end it.
            log.exception("an event of site %s could not be handled", happened.site)

    def _take_request(self, request: pb.Request) -> None:
        id = request.id

        def reply(**result: Any) -> None:
            self._put(pb.FromCoordinator(reply=pb.Reply(id=id, **result)))

        def answer(payload: Payload) -> None:
            reply(done=self._replies.keep(payload))

        def fail(error: BaseException) -> None:
            reply(failure=told(error))

        try:
            payload = payload_of(request, self.blobs)
        except (BadPayload, BadMessage) as error:
            fail(error)
            return
        self.questions.put(RunQuery(payload, answer, fail))

    def _end(self, reason: str) -> None:
        """Fail all open orders, once, after the end of the conversation."""
        with self._lock:
            if self._over:
                return
            self._over = reason
            waiting, self._waiting = self._waiting, {}
        self._board.end(reason)
        with suppress(queue.Full):
            self._outgoing.put_nowait(None)
        error: MediatorError = MediatorUnreachable(self._address, reason)
        for each in waiting.values():
            self._outbox.done(each.order)
            for future in each.futures:
                _settle(future, error)


@dataclass(frozen=True, slots=True)
class SiteLink:
    """A `Link` to a site's part of the run, through the mediator."""

    _connection: MediatorConnection
    _site: SiteName

    def ask(
        self, verb: str, payload: Payload, *, key: str, round_number: int = 0, purpose: str = ""
    ) -> Future[Payload]:
        """Send an order; the future fails with SiteLost once the mediator gives the site up."""
        return self._connection.ask(
            self._site, verb, payload, key=key, round_number=round_number, purpose=purpose
        )

    def listen(self, notify: Notify) -> None:
        self._connection.listen(self._site, notify)


def _settle(future: Future[Payload], made: Payload | BaseException) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(made, BaseException):
        future.set_exception(made)
    else:
        future.set_result(made)
