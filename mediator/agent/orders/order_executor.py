"""OrderExecutor: executes a site's orders, from arrival until the mediator has their answers.

An order survives its agent's death at its runner. The agent checks the site's policy for resources,
bytes and commands; the runner checks the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ...core.exchange import Effect, Responder
from ...core.links import LinkSpeed
from ...core.rules.policy import Policy
from ...core.rules.policy_decision import enforce, judge_command, judge_gang
from ...errors import MediatorError, PolicyRefused, RunnerDied, RunnersSpent, SiteLost
from ...proto import federation_pb2 as pb
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
from ..errors import AgentFailed, BadCommand
from ..runner.client import RunnerClient
from ..runner.deaths import place_of
from ..settings import AgentSettings
from ..text import in_short, mediator_said
from .commands import arguments_of, deadline_of, run_command
from .gangs import capped, gang_of
from .order_transfers import OrderTransfers
from .runners import Runners

log = logging.getLogger(__name__)

Send = Callable[[pb.FromSite], None]


class SiteRay(Protocol):
    """The site's Ray cluster and disk, as orders see them."""

    def trouble(self) -> str:
        """Why its Ray or its disk cannot be used; empty if both can."""

    def environment(self) -> Mapping[str, str]:
        """The environment variables with which a command reaches Ray; empty without one."""


@dataclass(slots=True)
class HeldOrder:
    """An order, until the mediator has taken its answer."""

    id: OrderId
    run: RunId
    verb: str = ""
    """Empty for work that an earlier agent accepted."""
    round_number: int = 0
    task: asyncio.Task[None] | None = None
    reached: bool = False
    """Whether its runner or command has it."""

    @property
    def message(self) -> pb.OrderId:
        return id_message(self.id)


class OrderExecutor:
    """All open orders of a site; used within one event loop."""

    def __init__(
        self,
        site: SiteName,
        runners: Runners,
        transfers: OrderTransfers,
        ray: SiteRay,
        *,
        link: LinkSpeed,
        policy: Callable[[], Policy],
        settings: AgentSettings,
    ) -> None:
        """`policy` reads the site's rules anew, since its admin may change them.

        `link` is the declared one, which promises name.
        """
        self._link = link
        self._site, self._runners = site, runners
        self._transfers, self._ray = transfers, ray
        self._policy, self._settings = policy, settings
        self._orders: dict[OrderId, HeldOrder] = {}
        self._responder = Responder[OrderId, pb.Answer]()
        self._turns: defaultdict[RunId, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Keep each run's work in order on its way to the runner."""
        self._send: Send | None = None
        self._commands = asyncio.Semaphore(settings.most_commands)
        self._beside: set[asyncio.Task[None]] = set()
        """Tasks for orders that are already forgotten."""

    # -- sessions ---------------------------------------------------------------------------------

    def held(self) -> list[OrderId]:
        """The orders that the mediator need not send again."""
        return sorted(self._orders)

    def begin(self, send: Send) -> None:
        """Begin a session: send again what the mediator may lack."""
        self._send = send
        self._transfers.session.set()
        for held in self._orders.values():
            self._report_again(held)

    def pause(self) -> None:
        self._send = None
        self._transfers.session.clear()

    def happened(self, run: RunId, event: pb.Happened) -> None:
        """Pass on a runner's event, if there is a session."""
        if self._send is not None:
            named = pb.Happened(run=run, kind=event.kind, header_json=event.header_json)
            self._send(pb.FromSite(happened=named))

    # -- orders -----------------------------------------------------------------------------------

    def take(self, order: pb.Order) -> None:
        """Accept an order, which may be a repeat."""
        try:
            id = order_id(order.id)
        except BadMessage as error:  # there is no id to answer under
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
        """Take over the orders that an earlier agent handed to a runner."""
        for message in (*runner.held.at_work, *runner.held.answered):
            id = order_id(message)
            verb = message.key if message.key in VERBS else ""
            held = HeldOrder(id, run, verb, self._transfers.round_of(id), reached=True)
            self._responder.adopt(id)
            self._orders[id] = held
            held.task = asyncio.create_task(self._adopted(held, runner))

    def answer_taken(self, message: pb.OrderId) -> None:
        """Forget an order whose answer the mediator has or does not need."""
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
        self._transfers.taken(id, ends_run=held.verb == "release")
        if (runner := self._runners.of(held.run)) is not None:
            runner.release(held.message)
            if held.verb == "release" and effect is Effect.FORGET:
                self._turns.pop(held.run, None)
                self._aside(self._runners.end(held.run, "its run has released it"))

    def _aside(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(doing)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def close(self) -> None:
        """Cancel all tasks; runners continue their work."""
        tasks = [held.task for held in self._orders.values() if held.task is not None]
        tasks += self._beside
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._transfers.close()
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
            answer = self._with_link(await runner.answer_of(held.message))
        except SiteLost as error:
            why = await self._runners.why_gone(held.run, runner, error.reason)
            answer = self._failed(held, why)
        except Exception as error:
            answer = self._failed(held, error)
        await self._answer(held, answer)

    async def _done(self, held: HeldOrder, order: pb.Order) -> pb.Answer:
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
            return self._with_link(await self._prepared(held, order))
        if order.verb == "release":  # perhaps of a run that ended before its runner started
            runner = await self._runners.settled(held.run)
            if runner is None:
                return pb.Answer(id=held.message, done=pb.Done(kind="done", header_json="{}"))
        elif (runner := self._runners.of(held.run)) is None:
            raise self._runners.why_none(held.run)
        if order.verb != "work":
            await self._transfers.fetch(held.id, blob_of(order.blob), held.round_number)
            return await self._asked(held, self._handed_over(held, order, runner), runner)
        self._transfers.begin_work(held.id, held.round_number)
        async with self._turns[held.run]:  # it may need the model of earlier work
            await self._transfers.fetch(held.id, blob_of(order.blob), held.round_number)
            asking = self._handed_over(held, order, runner)
        return await self._asked(held, asking, runner)

    def _with_link(self, answer: pb.Answer) -> pb.Answer:
        """A promise that also names the site's link, if that is declared."""
        if answer.done.kind == "promised" and (link := self._link.to_json()):
            header = read("promised", answer.done.header_json, None).header
            answer.done.header_json = header_json({**header, "link": link})
        return answer

    async def _prepared(self, held: HeldOrder, order: pb.Order) -> pb.Answer:
        """Prepare at a runner; restart it, within its budget, if it dies before its promise."""
        while True:
            try:
                runner = await self._runners.ensure(held.run)
                return await self._asked(held, self._handed_over(held, order, runner), runner)
            except RunnersSpent:
                raise
            except RunnerDied as error:
                log.warning("run %s: %s", held.run, error)

    def _handed_over(
        self, held: HeldOrder, order: pb.Order, runner: RunnerClient
    ) -> asyncio.Future[pb.Answer]:
        """Hand an order to its runner, after earlier ones."""
        asking = asyncio.ensure_future(runner.ask(order))
        held.reached = True
        self._report(held)
        return asking

    async def _asked(
        self, held: HeldOrder, asking: asyncio.Future[pb.Answer], runner: RunnerClient
    ) -> pb.Answer:
        """Wait for a runner's answer; SiteLost, with the reason, if the runner ends first."""
        try:
            return await asking
        except SiteLost as error:
            raise await self._runners.why_gone(held.run, runner, error.reason) from error
        finally:
            asking.cancel()

    def place_of(self, run: RunId) -> str:
        """What a run's runner is doing: the last round of its work, or its preparation."""
        at_work = [self._orders[id] for id in self._responder.at_work() if id.run == run]
        return place_of((each.verb, each.round_number) for each in at_work)

    def _prepare(self, order: pb.Order) -> str:
        """Say why the site refuses to prepare, or cap the request by the policy and return ""."""
        if trouble := self._ray.trouble():
            return trouble
        header = dict(read(order.kind, order.header_json, None).header)
        request = gang_of(header)
        try:
            policy = self._policy()
            enforce(self._site, judge_gang(policy, request.gang))
            request = capped(request, policy)
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
            who, words = (
                mediator_said(str(header.get("user", "nobody"))),
                mediator_said(" ".join(arguments)),
            )
            log.info("%s runs fedpilot %s", who, words)
            deadline_s = deadline_of(header, settings.command_s)
            outcome = await run_command(arguments, environment, deadline_s, settings.command_bytes)
        done = pb.Done(kind="command", header_json=header_json(asdict(outcome)))
        return pb.Answer(id=held.message, done=done)

    # -- answers ----------------------------------------------------------------------------------

    async def _answer(self, held: HeldOrder, answer: pb.Answer, *, again: bool = False) -> None:
        """Upload the answer's blob, if not booked `again`, then send the answer once possible."""
        try:
            if (blob := blob_of(answer.done.blob)) is not None and again:
                await self._transfers.bring_again(held.id, blob)
            elif blob is not None:
                await self._transfers.bring(held.id, blob, held.round_number)
        except Exception as error:  # the mediator waits for an answer, whatever the error is
            answer = self._failed(held, error)
        if self._responder.replied(held.id, answer) is Effect.REPLY:
            self._report(held)

    def _report(self, held: HeldOrder) -> None:
        if self._send is None:
            return
        if (answer := self._responder.replies().get(held.id)) is not None:
            self._send(pb.FromSite(answer=answer))
        elif held.reached:
            self._send(pb.FromSite(taken=pb.Taken(id=held.message)))

    def _report_again(self, held: HeldOrder) -> None:
        """Report to a mediator that may not know the order; offer an answer's blob first."""
        answer = self._responder.replies().get(held.id)
        if answer is None or not answer.done.blob.digest:
            self._report(held)
        elif held.task is None or held.task.done():
            held.task = asyncio.create_task(self._answer(held, answer, again=True))

    def _failed(self, held: HeldOrder, error: Exception) -> pb.Answer:
        """Make the answer of a failed order; unexpected errors stay in the site's log."""
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
