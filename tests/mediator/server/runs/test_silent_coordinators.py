"""A coordinator that does nothing any more does not keep its run going on for ever."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest

from fedpilot.mediator.core.restarts import RestartSettings
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server.orders import coordinator_registry as module
from fedpilot.mediator.server.orders.coordinator_registry import CoordinatorRegistry
from fedpilot.mediator.server.orders.outbox import Outbox
from fedpilot.mediator.server.services.coordinators import LARGEST_ORDER, Coordinators
from fedpilot.mediator.server.settings import ServerSettings
from fedpilot.mediator.wire.messages import PROTOCOL, RunId
from mediators import mediating

RUN = RunId("run")
Life = Callable[[CoordinatorRegistry, Callable[[float], Awaitable[None]]], Awaitable[None]]


async def stays_away(board: CoordinatorRegistry, wait: Callable[[float], Awaitable[None]]) -> None:
    pass


async def attaches_and_is_mute(
    board: CoordinatorRegistry, wait: Callable[[float], Awaitable[None]]
) -> None:
    await wait(50)
    board.attach(RUN, Outbox[pb.ToCoordinator](10))


async def speaks_for_a_while(
    board: CoordinatorRegistry, wait: Callable[[float], Awaitable[None]]
) -> None:
    await attaches_and_is_mute(board, wait)
    for _ in range(100):
        await wait(15)
        board.heard(RUN)


async def leaves(board: CoordinatorRegistry, wait: Callable[[float], Awaitable[None]]) -> None:
    line = Outbox[pb.ToCoordinator](10)
    board.attach(RUN, line)
    await wait(15)
    board.detach(RUN, line)


@pytest.mark.parametrize(
    ("life", "end_s", "what"),
    [
        pytest.param(stays_away, 60, "was not attached for 60 s", id="one stays away"),
        pytest.param(attaches_and_is_mute, 50 + 21, "has sent nothing for 20 s", id="one is mute"),
        pytest.param(speaks_for_a_while, 1_550 + 21, "has sent nothing for 20 s", id="one speaks"),
        pytest.param(leaves, 15 + 61, "was not attached for 60 s", id="one leaves and lives"),
    ],
)
def test_a_coordinator_falls_silent(
    monkeypatch: pytest.MonkeyPatch, life: Life, end_s: float, what: str
) -> None:
    now, turn = 0.0, asyncio.sleep

    async def sleep(step_s: float) -> None:
        nonlocal now
        now += step_s
        for _ in range(3):
            await turn(0)

    async def wait(seconds: float) -> None:
        until = now + seconds
        while now < until:
            await turn(0)

    async def test() -> None:
        board = CoordinatorRegistry()
        board.begin(RUN)
        living = asyncio.create_task(life(board, wait))
        assert await board.falls_silent(RUN, attach_s=60, alive_s=20) == what
        await living

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    asyncio.run(test())
    assert now == pytest.approx(end_s, abs=2)


class Listening(CoordinatorRegistry):
    """Remembers whom it has heard."""

    def __init__(self) -> None:
        super().__init__()
        self.spoken: list[RunId] = []

    def heard(self, run: RunId) -> None:
        self.spoken.append(run)


class NoSites:
    def standings(self) -> list[pb.ToCoordinator]:
        return []


class Context:
    def __init__(self) -> None:
        self.refused: list[str] = []

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        self.refused.append(text)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        pytest.param(pb.FromCoordinator(alive=pb.Alive()), "", id="that it lives"),
        pytest.param(
            pb.FromCoordinator(
                order=pb.SiteOrder(
                    site="paris",
                    order=pb.Order(
                        id=pb.OrderId(run=RUN, key="k"),
                        verb="work",
                        header_json=" " * LARGEST_ORDER,
                    ),
                )
            ),
            "an order of over",
            id="an order that fits into no message",
        ),
    ],
)
def test_whatever_a_coordinator_says_is_heard(
    tmp_path: Path, message: pb.FromCoordinator, problem: str
) -> None:
    async def messages() -> AsyncIterator[pb.FromCoordinator]:
        yield pb.FromCoordinator(attach=pb.Attach(run=RUN, protocol=PROTOCOL))
        yield message

    async def test() -> None:
        board, context = Listening(), Context()
        board.begin(RUN)
        coordinators = Coordinators(
            ServerSettings(folder=tmp_path),
            None,  # type: ignore[arg-type]
            NoSites(),  # type: ignore[arg-type]
            board,
            None,  # type: ignore[arg-type]
        )
        coordinators._detached = lambda run: None  # type: ignore[method-assign]
        await coordinators.session(messages(), context)
        assert board.spoken == [RUN]
        assert [text.startswith(problem) for text in context.refused] == [True] * bool(problem)

    asyncio.run(test())


def test_a_coordinator_that_never_attaches_is_started_again_within_the_budget(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        settings = {
            "coordinator": (sys.executable, "-S", "-c", "import time; time.sleep(60)"),
            "restarts": RestartSettings(most=1, first_pause_s=0.01),
            "attach_s": 0.2,
        }
        async with mediating(tmp_path / "m", **settings) as here:
            await here.submit("run")
            found = await here.ended("run")
            assert (found["status"], found["restarts"]) == ("failed", 1)
            assert "was killed by signal 9" in found["reason"]

    asyncio.run(test())
