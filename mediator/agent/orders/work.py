"""OrderExecutor: the orders of a site, from their arrival until the mediator has their answers.

The agent fetches an order's blob before the order reaches its runner, and brings the answer's blob
before it sends the answer. Both survive broken sessions, and the runner keeps what the agent would
lose by dying. The site's own policy is asked here about
resources, bytes and commands; about the rest the runner asks it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio

from ...core.exchange import Effect, Responder
from ...core.rules.policy import Policy
from ...core.rules.policy_decision import (
    Refused,
    enforce,
    judge_command,
    judge_resources,
    most_vnodes,
)
from ...core.traffic import Direction
from ...errors import MediatorError, PolicyRefused, RunnerDied, RunnersSpent, SiteLost
from ...proto import federation_pb2 as pb
from ...wire.blobs.blob import Blob
from ...wire.blobs.store import BlobStore
from ...wire.failures import machine_trouble, told
from ...wire.messages import (
    COMMANDS,
    MOST_HELD,
    VERBS,
    BadMessage,
    OrderId,
    RunId,
    SiteName,
    blob_of,
    check_order,
    id_message,
    order_id,
)
from ...wire.payloads import header_json, read
from ...wire.transfer import BlobClient, TransferFailed, TransferRefused
from ..errors import AgentFailed, BadCommand
from ..runner.client import RunnerClient
from ..runner.deaths import place_of
from ..settings import AgentSettings
from ..site_config.site_policy import policy_of
from ..text import in_short, one_line
from .commands import arguments_of, deadline_of, run_command
from .gangs import gang_of
from .run_blobs import RunBlobs
from .runners import Runners
from .traffic import SiteSpending

log = logging.getLogger(__name__)

REFUSED_S = 60.0
"""A mediator that was restarted gives a blob once the coordinator has asked again."""
AGAIN_S = 2.0
REFUSALS = 5
"""Times that a blob may be refused for what it is."""
FOR_WHAT_IT_IS = frozenset({grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT})

Send = Callable[[pb.FromSite], None]


class SiteRay(Protocol):
    """What work needs to know of the site's machines."""

    def trouble(self) -> str:
        """Why its Ray or its disk cannot be worked with; empty if both can."""

    def environment(self) -> Mapping[str, str]:
        """What leads a command to it; empty where there is none that it could be led to."""


@dataclass(slots=True)
class HeldOrder:
    """What is kept here for an order until its answer is taken."""

    id: OrderId
    run: RunId
    verb: str = ""
    """Empty where an agent before us took it."""
    round_number: int = 0
    task: asyncio.Task[None] | None = None
    reached: bool = False
    """Whether whoever works on it has it."""
    pins: list[str] = field(default_factory=list)
    brought: str = ""
    """The digest of the answer's blob, from when it is booked until the answer is taken."""

    @property
    def message(self) -> pb.OrderId:
        """Its id on the wire."""
        return id_message(self.id)


class OrderExecutor:
    """All open orders of a site; used within one event loop."""

    def __init__(
        self,
        site: SiteName,
        runners: Runners,
        store: BlobStore,
        blobs: BlobClient,
        spending: SiteSpending,
        ray: SiteRay,
        *,
        policy: Path | None,
        settings: AgentSettings,
        wall_clock: Callable[[], float],
    ) -> None:
        self._site, self._runners = site, runners
        self._store, self._blobs = store, blobs
        self._spending, self._ray = spending, ray
        self._policy_file, self._settings = policy, settings
        self._wall_clock = wall_clock
        self._orders: dict[OrderId, HeldOrder] = {}
        self._responder = Responder[OrderId, pb.Answer]()
        self._run_blobs = RunBlobs()
        self._send: Send | None = None
        self._commands = asyncio.Semaphore(settings.most_commands)
        self._session = asyncio.Event()
        """Set while there is one."""
        self._beside: set[asyncio.Task[None]] = set()
        """What is done for orders that are no more."""

    # -- sessions ---------------------------------------------------------------------------------

    def held(self) -> list[OrderId]:
        """The orders that are not to be sent again."""
        return sorted(self._orders)

    def begin(self, send: Send) -> None:
        """A session has begun: what the mediator may not have is sent again."""
        self._send = send
        self._session.set()
        for held in self._orders.values():
            self._report_again(held)

    def pause(self) -> None:
        """The session has ended."""
        self._send = None
        self._session.clear()

    def happened(self, run: RunId, event: pb.Happened) -> None:
        """Pass on what a runner tells, if there is a session."""
        if self._send is not None:
            self._send(pb.FromSite(happened=pb.Happened(**_fields(event), run=run)))

    # -- orders -----------------------------------------------------------------------------------

    def take(self, order: pb.Order) -> None:
        """An order has come, perhaps again."""
        try:
            id = order_id(order.id)
        except BadMessage as error:  # there is nobody to answer to
            log.warning("an order of the mediator is not taken: %s", error)
            return
        held = HeldOrder(id, id.run, order.verb, order.round)
        if id not in self._orders and len(self._orders) >= MOST_HELD:  # nothing of it is kept
            full = BadMessage(f"site {self._site} has {MOST_HELD} open orders; it takes no more")
            if self._send is not None:
                self._send(pb.FromSite(answer=self._failed(held, full)))
        elif self._responder.asked(id) is Effect.EXECUTE:
            self._orders[id] = held
            held.task = asyncio.create_task(self._work(held, order))
        else:
            self._report_again(self._orders[id])

    def adopt(self, run: RunId, runner: RunnerClient) -> None:
        """Take over the orders that a runner has from an agent before us."""
        for message in (*runner.held.at_work, *runner.held.answered):
            id = order_id(message)
            verb = message.key if message.key in VERBS else ""
            held = HeldOrder(id, run, verb, self._spending.round_of(id), reached=True)
            self._responder.adopt(id)
            self._orders[id] = held
            held.task = asyncio.create_task(self._adopted(held, runner))

    def answer_taken(self, message: pb.OrderId) -> None:
        """The mediator has an answer, or wants none: forget the order."""
        try:
            id = order_id(message)
        except BadMessage as error:
            log.warning("the mediator confirms no answer: %s", error)
            return
        effect, held = self._responder.released(id), self._orders.pop(id, None)
        if held is None:
            return
        if effect is Effect.STOP:
            self._responder.stopped(id)
        if held.task is not None:
            held.task.cancel()
        pinned = tuple(held.pins)
        self._let_go(held)
        self._remove_unneeded(held, pinned)
        self._spending.done(held.id)
        if held.brought:
            self._spending.end(Direction.FROM_SITE, held.brought)
        if (runner := self._runners.of(held.run)) is not None:
            runner.release(held.message)
            if held.verb == "release" and effect is Effect.FORGET:
                self._aside(self._runners.end(held.run, "its run has released it"))

    def _aside(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(doing)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def close(self) -> None:
        """Stop; what is at a runner goes on there."""
        tasks = [held.task for held in self._orders.values() if held.task is not None]
        tasks += self._beside
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for held in self._orders.values():
            self._let_go(held)
        self._orders.clear()
        self._responder = Responder()

    async def _work(self, held: HeldOrder, order: pb.Order) -> None:
        try:
            answer = await self._done(held, order)
        except Exception as error:
            answer = self._failed(held, error)
        await self._answer(held, answer)

    async def _adopted(self, held: HeldOrder, runner: RunnerClient) -> None:
        try:
            answer = await runner.answer_of(held.message)
        except SiteLost as error:
            why = await self._runners.why_gone(held.run, runner, error.reason)
            answer = self._failed(held, why)
        except Exception as error:
            answer = self._failed(held, error)
        await self._answer(held, answer)

    async def _done(self, held: HeldOrder, order: pb.Order) -> pb.Answer:
        """Have an order worked on, wherever that is."""
        check_order(order)
        if (order.verb == "command") != (held.run == COMMANDS):
            raise BadMessage(f"the verb {order.verb} does not go with the run {held.run!r}")
        if order.verb == "command":
            return await self._command(held, order)
        if order.verb == "prepare":
            refusal = self._prepare(order) or self._runners.no_room_for(held.run)
            if refusal:
                header = header_json({"reason": refusal})
                done = pb.Done(kind="refused", header_json=header)
                return pb.Answer(id=held.message, done=done)
            return await self._prepared(held, order)
        else:
            if order.verb == "release":  # of a run that was over before its runner was there, too
                there = await self._runners.settled(held.run)
            else:
                there = self._runners.of(held.run)
            if there is None and order.verb == "release":
                return pb.Answer(id=held.message, done=pb.Done(kind="done", header_json="{}"))
            if there is None:
                raise self._runners.why_none(held.run)
            runner = there
        if order.verb == "work":
            self._spending.take(self._policy(), held.id, held.round_number)
        await self._fetch(held, order)
        return await self._asked(held, order, runner)

    async def _prepared(self, held: HeldOrder, order: pb.Order) -> pb.Answer:
        """Have a runner promise; one that dies before it has is started again within its budget."""
        while True:
            try:
                runner = await self._runners.ensure(held.run)
                return await self._asked(held, order, runner)
            except RunnersSpent:
                raise
            except RunnerDied as error:
                log.warning("run %s: %s", held.run, error)

    async def _asked(self, held: HeldOrder, order: pb.Order, runner: RunnerClient) -> pb.Answer:
        """Have a runner work on an order. SiteLost with the reason if the runner goes."""
        asking = asyncio.ensure_future(runner.ask(order))
        held.reached = True
        self._report(held)
        try:
            return await asking
        except SiteLost as error:
            raise await self._runners.why_gone(held.run, runner, error.reason) from error
        finally:
            asking.cancel()

    def place_of(self, run: RunId) -> str:
        """What a run's runner is at work on: the last round of its work, or its preparation."""
        at_work = [self._orders[id] for id in self._responder.at_work() if id.run == run]
        return place_of((each.verb, each.round_number) for each in at_work)

    def _prepare(self, order: pb.Order) -> str:
        """Why the site promises nothing; empty if its runner may try, within the site's caps."""
        if trouble := self._ray.trouble():
            return trouble
        header = dict(read(order.kind, order.header_json, None).header)
        request = gang_of(header)
        try:
            policy = self._policy()
            most = most_vnodes(policy, request.resources)
            if request.workers is None and most is not None:
                request = replace(request, at_most=min(request.at_most, max(1, most)))
            enforce(
                self._site,
                judge_resources(policy, request.workers or 1, request.resources),
            )
        except MediatorError as error:
            return str(error)
        order.header_json = header_json(request.to_json())
        return ""

    async def _command(self, held: HeldOrder, order: pb.Order) -> pb.Answer:
        header = read(order.kind, order.header_json, None).header
        arguments = arguments_of(header)
        enforce(self._site, judge_command(self._policy(), arguments))
        environment = self._ray.environment()
        if not environment:
            why = self._ray.trouble() or "every run has a private one"
            raise BadCommand(f"site {self._site} has no Ray cluster to ask: {why}")
        held.reached = True
        self._report(held)
        settings = self._settings
        async with self._commands:
            who, words = one_line(str(header.get("user", "nobody"))), one_line(" ".join(arguments))
            log.info("%s runs fedpilot %s", who, words)
            outcome = await run_command(
                arguments,
                environment,
                deadline_of(header, settings.command_s),
                settings.command_bytes,
            )
        done = pb.Done(kind="command", header_json=header_json(outcome.to_json()))
        return pb.Answer(id=held.message, done=done)

    # -- blobs ------------------------------------------------------------------------------------

    async def _fetch(self, held: HeldOrder, order: pb.Order) -> None:
        """Have the order's blob here; it stays until the answer has been taken."""
        blob = blob_of(order.blob)
        if blob is None:
            return
        self._pin(held, blob.digest)
        if self._store.has(blob):
            return
        self._charge(held, Direction.TO_SITE, blob)
        try:
            await self._download(blob)
        finally:
            self._spending.end(Direction.TO_SITE, blob.digest)

    async def _download(self, blob: Blob) -> None:
        until = asyncio.get_running_loop().time() + REFUSED_S
        while True:
            try:
                await self._blobs.download(blob)
                return
            except TransferFailed as error:
                raise SiteLost(self._site, str(error)) from error
            except TransferRefused as error:
                if asyncio.get_running_loop().time() > until:
                    raise SiteLost(self._site, str(error)) from error
                await asyncio.sleep(AGAIN_S)

    async def _answer(self, held: HeldOrder, answer: pb.Answer) -> None:
        """Bring the answer's blob, then send the answer whenever there is a session."""
        try:
            blob = blob_of(answer.done.blob)
            if blob is not None:
                self._pin(held, blob.digest)
                self._charge(held, Direction.FROM_SITE, blob)
                held.brought = blob.digest
                await self._bring(held, blob)
        except Exception as error:  # whatever it is, somebody waits to be told
            answer = self._failed(held, error)
        self._answered(held, answer)

    def _answered(self, held: HeldOrder, answer: pb.Answer) -> None:
        if self._responder.replied(held.id, answer) is Effect.REPLY:
            self._report(held)

    async def _bring(self, held: HeldOrder, blob: Blob) -> None:
        """Upload, however long the link is down; until the mediator says that nobody waits."""
        refused = 0
        while refused < REFUSALS:
            await self._session.wait()
            try:
                await self._blobs.upload(blob, run=held.id.run, key=held.id.key)
                return
            except (TransferFailed, TransferRefused) as error:
                # Nobody waits for it now: AnswerTaken ends this, or the next session needs it.
                log.info("the answer of %s is brought again later: %s", held.id.key, error)
                last, cause = error, error.__cause__
                if isinstance(cause, grpc.aio.AioRpcError) and cause.code() in FOR_WHAT_IT_IS:
                    refused += 1
            await asyncio.sleep(AGAIN_S)
        raise last

    def _charge(self, held: HeldOrder, direction: Direction, blob: Blob) -> None:
        refused: Refused | None = self._spending.begin(
            self._policy(),
            direction,
            held.run,
            blob,
            round_number=held.round_number,
            now=self._wall_clock(),
        )
        enforce(self._site, refused)

    def crossed(self, direction: Direction, digest: str, nbytes: int) -> None:
        """Bytes of a blob have crossed; PolicyRefused where that is more than may."""
        now = self._wall_clock()
        enforce(self._site, self._spending.cross(self._policy, direction, digest, nbytes, now=now))

    def _pin(self, held: HeldOrder, digest: str) -> None:
        self._store.pin(digest)
        held.pins.append(digest)

    def _let_go(self, held: HeldOrder) -> None:
        while held.pins:
            self._store.unpin(held.pins.pop())

    def _remove_unneeded(self, held: HeldOrder, digests: tuple[str, ...]) -> None:
        """Remove what nobody needs of an order's blobs, and of those before it in its run."""
        unneeded = [held.brought] if held.brought else []
        for digest in digests:
            if digest != held.brought:
                unneeded += self._run_blobs.used(held.run, digest)
        if held.verb == "release":
            unneeded += self._run_blobs.ended(held.run)
        for digest in unneeded:
            self._store.remove(digest)

    # -- answers ----------------------------------------------------------------------------------

    def _report(self, held: HeldOrder) -> None:
        """Tell the mediator how far an order is."""
        if self._send is None:
            return
        if (answer := self._responder.replies().get(held.id)) is not None:
            self._send(pb.FromSite(answer=answer))
        elif held.reached:
            self._send(pb.FromSite(taken=pb.Taken(id=held.message)))

    def _report_again(self, held: HeldOrder) -> None:
        """Tell a mediator that may know nothing of it; such a one wants an answer's blob first."""
        answer = self._responder.replies().get(held.id)
        blob = None if answer is None else blob_of(answer.done.blob)
        if answer is None or blob is None:
            self._report(held)
        elif held.task is None or held.task.done():
            held.task = asyncio.create_task(self._bring_again(held, answer, blob))

    async def _bring_again(self, held: HeldOrder, answer: pb.Answer, blob: Blob) -> None:
        try:
            await self._bring(held, blob)
        except Exception as error:
            answer = self._failed(held, error)
        self._answered(held, answer)

    def _failed(self, held: HeldOrder, error: Exception) -> pb.Answer:
        """The answer of an order that failed; of what nobody foresaw the details stay here."""
        found = machine_trouble(self._site, error)
        if isinstance(error, PolicyRefused):
            log.warning("refused %s of %s: %s", held.verb, held.run or "the mediator", error)
        elif isinstance(found, SiteLost):
            log.warning("order %s of %s failed: %s", held.id.key, held.run, error)
            error = found
        elif not isinstance(error, MediatorError):
            log.error("order %s of %s failed in the agent", held.id.key, held.run, exc_info=error)
            broken = SiteLost if isinstance(error, OSError) else AgentFailed
            error = broken(self._site, f"{in_short(error)}; its own log says more")
        return pb.Answer(id=held.message, failure=told(error))

    def _policy(self) -> Policy:
        """As the file is now: its admin may have changed it."""
        return policy_of(self._site, self._policy_file)


def _fields(event: pb.Happened) -> dict[str, Any]:
    return {"kind": event.kind, "header_json": event.header_json}
