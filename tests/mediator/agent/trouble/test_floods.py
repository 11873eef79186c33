"""What a mediator that means no good can have an agent keep, start and print has an end."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedpilot.mediator.agent import session as sessions
from fedpilot.mediator.agent.errors import SessionBroken
from fedpilot.mediator.agent.home import SiteHome
from fedpilot.mediator.agent.orders import order_executor
from fedpilot.mediator.agent.orders.commands import CommandOutcome
from fedpilot.mediator.agent.orders.order_executor import OrderExecutor
from fedpilot.mediator.agent.orders.order_transfers import OrderTransfers
from fedpilot.mediator.agent.orders.runners import Runners
from fedpilot.mediator.agent.orders.traffic import SiteTraffic
from fedpilot.mediator.agent.runner.process import RayChoice, RunnerProcess, RunnerSettings
from fedpilot.mediator.agent.session import AgentSession
from fedpilot.mediator.agent.text import in_short, mediator_said
from fedpilot.mediator.core.links import LinkSpeed
from fedpilot.mediator.core.rules.policy import CommandPolicy, Policy
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.messages import RunId
from site_agents import PARIS, QUICK


def runners(folder: Path, **options: Any) -> Runners:
    return Runners(
        SiteHome(folder),
        PARIS,
        QUICK,
        ray=RayChoice,
        data={},
        policy=None,
        happened=lambda *_: None,
        ended=lambda *_: None,
        at_work=lambda _: "",
        clock=lambda: 0.0,
        **options,
    )


def transfers(folder: Path) -> OrderTransfers:
    return OrderTransfers(
        PARIS,
        BlobStore(folder / "blobs", 1 << 20),
        None,  # type: ignore[arg-type]
        SiteTraffic(folder / "traffic.json"),
        policy=Policy,
        wall_clock=lambda: 0.0,
    )


def test_orders_beyond_the_most_are_refused_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_executor, "MOST_HELD", 2)
    sent: list[pb.FromSite] = []

    async def flood() -> None:
        work = OrderExecutor(
            PARIS,
            runners(tmp_path),
            transfers(tmp_path),
            None,  # type: ignore[arg-type]
            link=LinkSpeed(),
            policy=Policy,
            settings=QUICK,
        )
        work.begin(sent.append)
        for number in range(5):
            work.take(pb.Order(id=pb.OrderId(run="r", key=f"k{number}"), verb="explode"))
        assert [id.key for id in work.held()] == ["k0", "k1"]
        await work.close()

    asyncio.run(flood())
    assert [each.answer.id.key for each in sent] == ["k2", "k3", "k4"]
    assert all("takes no more" in each.answer.failure.message for each in sent)


def test_commands_run_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = [0]

    class Ray:
        def trouble(self) -> str:
            return ""

        def environment(self) -> dict[str, str]:
            return {"RAY_ADDRESS": "127.0.0.1:1"}

    async def run_command(*_: object) -> CommandOutcome:
        at_once.append(at_once[-1] + 1)
        await asyncio.sleep(0.01)
        at_once.append(at_once[-1] - 1)
        return CommandOutcome(exit_code=0, out="", err="")

    monkeypatch.setattr(order_executor, "run_command", run_command)

    async def flood() -> int:
        sent: list[pb.FromSite] = []
        work = OrderExecutor(
            PARIS,
            runners(tmp_path),
            transfers(tmp_path),
            Ray(),
            link=LinkSpeed(),
            policy=partial(Policy, commands=CommandPolicy.ALL),
            settings=replace(QUICK, most_commands=2),
        )
        work.begin(sent.append)
        header = json.dumps({"arguments": ["cluster", "list"], "user": "mary"})
        for number in range(5):
            id = pb.OrderId(key=f"command/{number}")
            work.take(pb.Order(id=id, verb="command", kind="command", header_json=header))
        while sum(each.HasField("answer") for each in sent) < 5:
            await asyncio.sleep(0.01)
        await work.close()
        return sum(each.answer.HasField("done") for each in sent)

    assert asyncio.run(asyncio.wait_for(flood(), 60)) == 5
    assert max(at_once) == 2


def test_a_run_of_which_nobody_knows_anything_ends_no_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(folder: Path) -> RunnerProcess:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(RunnerProcess, "find", find)
    with SiteHome(tmp_path).locked():
        (tmp_path / "runs" / "r").mkdir()
        assert asyncio.run(runners(tmp_path).adopt()) == ()


def test_a_mediator_that_reads_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_WAITING", 3)

    async def fill() -> None:
        session = AgentSession(None, None, QUICK, lambda: 0.0)  # type: ignore[arg-type]
        for _ in range(3):
            session.send(pb.FromSite(heartbeat=pb.Heartbeat()))
        assert not session._left.is_set()
        for _ in range(9):
            session.send(pb.FromSite(heartbeat=pb.Heartbeat()))
        assert len(session._waiting) == 3
        with pytest.raises(SessionBroken, match="reads none of 3 messages"):
            await session._leave()

    asyncio.run(fill())


def test_a_process_that_nobody_waits_for_any_more_is_killed(tmp_path: Path) -> None:
    go, killed = threading.Event(), threading.Event()

    class Process:
        kill = staticmethod(killed.set)

    def start(folder: Path, settings: RunnerSettings) -> RunnerProcess:
        assert go.wait(60)
        return Process()  # type: ignore[return-value]

    async def play() -> None:
        made = runners(tmp_path, start=start)
        ensuring = asyncio.create_task(made.ensure(RunId("r")))
        await asyncio.sleep(0.01)
        ensuring.cancel()
        await asyncio.gather(ensuring, return_exceptions=True)
        go.set()
        assert await asyncio.to_thread(killed.wait, 10)
        assert made.busy() == frozenset()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("it was\nremoved", "it was removed", id="lines"),
        pytest.param("\x1b[2Jgone", "?[2Jgone", id="what clears a terminal"),
        pytest.param("", "it gave no reason", id="nothing"),
        pytest.param("x" * 900, "x" * 500, id="much"),
    ],
)
def test_what_a_mediator_says_does_nothing_to_a_terminal(text: str, line: str) -> None:
    assert mediator_said(text) == line


def test_what_went_wrong_is_told_without_names_of_files() -> None:
    error = FileNotFoundError(2, "No such file or directory", "/data/anna")
    assert in_short(error) == "No such file or directory"
    assert in_short(ValueError("anna")) == "ValueError"
