"""A runner's socket with real drivers at it, without Ray: who is heard, what is sent, who ends."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import grpc.aio
import pytest

from fedpilot.mediator import SiteLost
from fedpilot.mediator.agent.runner.client import LARGEST_ORDER, RunnerClient
from fedpilot.mediator.agent.runner.process import (
    PROTOCOL,
)
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.local_socket import LARGEST_LOCAL_MESSAGE, RUNNER_SOCKET
from fedpilot.mediator.wire.messages import BadMessage
from fedpilot.mediator.wire.rpc import RUNNER, Stub
from real_ray import eventually
from served_runners import SOON_S, FakeRunner, order, ran

# -- an agent's end -------------------------------------------------------------------------------


def test_an_order_is_answered_and_worked_on_once(runner: FakeRunner) -> None:
    async def story() -> None:
        driver = await RunnerClient.connect(runner.folder)
        first, second = await asyncio.gather(driver.ask(order("a")), driver.ask(order("a")))
        assert first == second
        assert first.done.kind == "k"
        assert await driver.ask(order("a")) == first
        assert runner.worked_on == ["a"]
        driver.release(first.id)
        await driver.ask(order("a"))
        assert runner.worked_on == ["a", "a"], "a taken key is free again"
        await driver.close()

    ran(story)


def test_a_successor_gets_the_answers_of_its_predecessor(runner: FakeRunner) -> None:
    async def story() -> None:
        driver = await RunnerClient.connect(runner.folder)
        assert (driver.held.run, driver.held.site) == ("r", "paris")
        answered = await driver.ask(order("done"))
        runner.make = None
        waiting = asyncio.create_task(driver.ask(order("at work")))
        while "at work" not in runner.worked_on:
            await asyncio.sleep(0)
        await driver.close()
        with pytest.raises(SiteLost):
            await waiting

        runner.answer("at work")
        successor = await RunnerClient.connect(runner.folder)
        held = [*successor.held.at_work, *successor.held.answered]
        assert sorted(id.key for id in held) == ["at work", "done"]
        found = {id.key: await successor.answer_of(id) for id in held}
        assert found["done"] == answered
        assert found["at work"].done.kind == "late"
        assert await successor.ask(order("at work")) == found["at work"]
        assert runner.worked_on == ["done", "at work"]
        for id in held:
            successor.release(id)
        await successor.close()

        third = await RunnerClient.connect(runner.folder)
        assert not [*third.held.at_work, *third.held.answered]
        await third.close()

    ran(story)


def test_the_newest_driver_takes_over(runner: FakeRunner) -> None:
    async def story() -> None:
        old = await RunnerClient.connect(runner.folder)
        new = await RunnerClient.connect(runner.folder)
        assert "another driver has taken over" in (await old.gone()).reason
        with pytest.raises(SiteLost, match="taken over"):
            await old.ask(order("a"))
        assert (await new.ask(order("b"))).done.kind == "k"
        await new.close()

    ran(story)


def test_events_reach_whoever_is_connected(runner: FakeRunner) -> None:
    async def story() -> None:
        told: asyncio.Queue[pb.Happened] = asyncio.Queue()
        runner.server.happened(pb.Happened(run="r", kind="nobody listens"))
        driver = await RunnerClient.connect(runner.folder, on_event=told.put_nowait)
        runner.server.happened(pb.Happened(run="r", kind="worker_ready", header_json="{}"))
        assert (await told.get()).kind == "worker_ready"
        await driver.close()

    ran(story)


def test_a_farewell_ends_the_runner(runner: FakeRunner) -> None:
    async def story() -> None:
        driver = await RunnerClient.connect(runner.folder)
        driver.end("the run was stopped")
        while not runner.ended:
            await asyncio.sleep(0.01)
        assert runner.ended == ["the run was stopped"]
        runner.server.close("it has ended in order")
        assert "it has ended in order" in (await driver.gone()).reason
        await driver.close()

    ran(story)


def test_no_runner_is_a_lost_site_at_once(runner: FakeRunner) -> None:
    (runner.folder / "runner.log").write_text("first\nRuntimeError: no Ray\n")
    runner.die()

    async def story() -> None:
        with pytest.raises(SiteLost, match="RuntimeError: no Ray"):
            await RunnerClient.connect(runner.folder)

    ran(story)


def test_a_folder_may_lie_deep(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-long-name-of-a-folder"] * 8)
    made = FakeRunner(deep)

    async def story() -> None:
        driver = await RunnerClient.connect(deep)
        assert (await driver.ask(order("a"))).done.kind == "k"
        await driver.close()

    try:
        ran(story)
    finally:
        made.die()


# -- leases ---------------------------------------------------------------------------------------


def test_a_lease_goes_on_as_long_as_it_is_renewed(tmp_path: Path) -> None:
    runner = FakeRunner(tmp_path / "runner", lease_s=30, orphan_s=1000)

    async def story() -> None:
        driver = await RunnerClient.connect(runner.folder, lease_s=30)
        runner.clock.advance(29)
        driver.renew(50)
        await driver.ask(order("after the renewal"))
        runner.clock.advance(49)
        await asyncio.sleep(0.3)  # several looks at the leases
        assert runner.ended == []
        runner.clock.advance(1)
        while not runner.ended:
            await asyncio.sleep(0.01)
        assert runner.ended == ["its lease of 50 s was not renewed"]
        await driver.close()

    try:
        ran(story)
    finally:
        runner.die()


def test_nobody_comes(tmp_path: Path) -> None:
    runner = FakeRunner(tmp_path / "runner", orphan_s=5)
    runner.clock.advance(5)
    eventually(lambda: runner.ended != [], SOON_S, "it ends")
    assert runner.ended == ["no peer was connected for 5 s"]
    runner.die()


def test_a_promise_lapses_and_the_runner_goes_on(runner: FakeRunner) -> None:
    runner.server.promised(7.0)

    async def story() -> None:
        driver = await RunnerClient.connect(runner.folder)
        await driver.ask(order("after the promise"))
        runner.clock.advance(7)
        while not runner.lapsed:
            await asyncio.sleep(0.01)
        await driver.ask(order("later"))
        assert (runner.lapsed, runner.ended) == (1, [])
        await driver.close()

    ran(story)


# -- strangers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2\xff\xff" * 10])
def test_a_stranger_is_left_and_disturbs_nobody(runner: FakeRunner, data: bytes) -> None:
    async def story() -> None:
        driver = await RunnerClient.connect(runner.folder)
        reader, writer = await asyncio.open_unix_connection(runner.folder / RUNNER_SOCKET)
        writer.write(data)
        with suppress(ConnectionResetError):
            await reader.read()  # until it hangs up
        writer.close()
        assert (await driver.ask(order("a"))).done.kind == "k"
        assert runner.worked_on == ["a"]
        await driver.close()

    ran(story)


@pytest.mark.parametrize(
    ("first", "said"),
    [
        pytest.param(
            pb.ToRunner(order=order("x")), "a driver greets first", id="an order before a greeting"
        ),
        pytest.param(
            pb.ToRunner(greeting=pb.Greeting(protocol=99)),
            f"the runner speaks protocol {PROTOCOL}, its driver 99",
            id="another protocol",
        ),
        pytest.param(
            pb.ToRunner(order=pb.Order(header_json="x" * LARGEST_LOCAL_MESSAGE)),
            "larger than max",
            id="a message that is too large",
        ),
    ],
)
def test_what_no_driver_says_first_is_refused(
    runner: FakeRunner, first: pb.ToRunner, said: str
) -> None:
    async def refused() -> str:
        address = f"unix:{runner.folder / RUNNER_SOCKET}"
        async with grpc.aio.insecure_channel(address) as channel:
            session = Stub(channel, RUNNER).session(iter([first]))
            try:
                farewell: pb.FromRunner = await session.read()
            except grpc.aio.AioRpcError as error:
                return str(error.details())
            assert await session.read() is grpc.aio.EOF
            return farewell.farewell.reason

    async def story() -> None:
        driver = await RunnerClient.connect(runner.folder)
        assert said in await refused()
        assert (await driver.ask(order("a"))).done.kind == "k"
        assert runner.worked_on == ["a"]
        await driver.close()

    ran(story)


def test_an_order_that_is_too_large_fails_alone(runner: FakeRunner) -> None:
    async def story() -> None:
        driver = await RunnerClient.connect(runner.folder)
        large = order("large")
        large.header_json = "x" * LARGEST_ORDER
        with pytest.raises(BadMessage, match="over"):
            await driver.ask(large)
        large.header_json = "x" * (LARGEST_ORDER - 100)
        assert (await driver.ask(large)).HasField("failure")
        assert (await driver.ask(order("a"))).done.kind == "k"
        await driver.close()

    ran(story)


def test_only_its_own_user_reaches_a_runner(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        runner = FakeRunner(tmp_path / "runner")
    finally:
        os.umask(mask)
    assert runner.folder.stat().st_mode & 0o777 == 0o700
    runner.die()
