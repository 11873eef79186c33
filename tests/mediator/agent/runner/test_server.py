"""A runner's socket with real drivers at it, without Ray: who is heard, what is sent, who ends."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from fedpilot.fabric import GangTimeout
from fedpilot.fabric.testing.fake_cluster import ManualClock
from fedpilot.mediator import LinkedSite, Payload, Refusal, SiteLost, WorkFailed
from fedpilot.mediator.agent.runner.client import LARGEST_ORDER, RunnerClient
from fedpilot.mediator.agent.runner.link import OrderTensors, RunnerLink
from fedpilot.mediator.agent.runner.process import (
    LOCK,
    PROTOCOL,
    SETTINGS,
    RunnerProcess,
    RunnerSettings,
)
from fedpilot.mediator.agent.runner.server import RunnerServer
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.blobs.references import Keeping
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.failures import told
from fedpilot.mediator.wire.local_socket import LARGEST_LOCAL_MESSAGE, RUNNER_SOCKET
from fedpilot.mediator.wire.messages import BadMessage, done_message, payload_of
from fedpilot.mediator.wire.rpc import RUNNER, Stub
from real_ray import eventually

SOON_S = 60.0


class FakeRunner:
    """A server in this process, and a hand that works on what it is told to."""

    def __init__(self, folder: Path, lease_s: float = 0.0, orphan_s: float = 60.0) -> None:
        folder.mkdir(parents=True)
        blobs = folder / "blobs"
        settings = RunnerSettings(run="r", site="paris", blobs=blobs, lease_s=lease_s)
        (folder / SETTINGS).write_text(json.dumps(settings.to_json()))
        self.folder = folder
        self.clock = ManualClock(1000.0)
        self.keeping = Keeping(BlobStore(blobs, 1 << 30), discard=True)
        self.orders: list[pb.Order] = []
        self.ended: list[str] = []
        self.lapsed = 0
        self.make: Callable[[Payload], Payload] | None = lambda payload: payload
        """What an order is answered with; None to leave it at work."""
        self.lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.server = RunnerServer(
            folder,
            self,
            run="r",
            site="paris",
            lease_s=lease_s,
            orphan_s=orphan_s,
            clock=self.clock,
        )
        self.server.open()

    def work(self, order: pb.Order) -> None:
        self.orders.append(order)
        if self.make is None:
            return
        try:
            made = self.make(payload_of(order, self.keeping.store))
            done = self.keeping.keep(lambda store: done_message(made, store))
        except Exception as error:
            self.server.answer(pb.Answer(id=order.id, failure=told(error)))
        else:
            self.server.answer(pb.Answer(id=order.id, done=done))

    def answer(self, key: str, kind: str = "late") -> None:
        done = pb.Done(kind=kind, header_json="{}")
        self.server.answer(pb.Answer(id=pb.OrderId(run="r", key=key), done=done))

    def taken(self, answer: pb.Answer) -> None:
        if answer.done.blob.digest:
            self.keeping.let_go(answer.done.blob.digest)

    def lapse(self) -> None:
        self.lapsed += 1

    def end(self, reason: str) -> None:
        self.ended.append(reason)

    def die(self) -> None:
        self.server.close("it dies")
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    @property
    def worked_on(self) -> list[str]:
        return [order.id.key for order in self.orders]


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[FakeRunner]:
    made = FakeRunner(tmp_path / "runner")
    yield made
    made.die()


def order(key: str) -> pb.Order:
    return pb.Order(id=pb.OrderId(run="r", key=key), verb="work", kind="k", header_json="{}")


def ran(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story(), SOON_S)

    asyncio.run(bounded())


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
    assert runner.ended == ["nobody was connected for 5 s"]
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


# -- a link ---------------------------------------------------------------------------------------


class Linked:
    """A link to a fake runner, and the blobs that the two share."""

    def __init__(self, runner: FakeRunner) -> None:
        self.runner = runner
        store = BlobStore(runner.folder / "blobs", 1 << 30)
        self.link = RunnerLink(
            RunnerProcess(runner.folder), OrderTensors(Keeping(store, discard=True))
        )

    def ask(self, payload: Payload, key: str = "k") -> Future[Payload]:
        return self.link.ask("work", payload, key=key, round_number=3, purpose="training")

    @property
    def blobs(self) -> list[str]:
        found = (path.name for path in (self.runner.folder / "blobs").iterdir())
        return sorted(name for name in found if not name.startswith("."))


@pytest.fixture
def linked(runner: FakeRunner) -> Iterator[Linked]:
    made = Linked(runner)
    yield made
    made.link.close()


WEIGHTS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(3)}


def test_tensors_go_there_and_back_and_leave_nothing(linked: Linked) -> None:
    runner = linked.runner
    runner.make = lambda payload: Payload(
        kind="doubled", header=payload.header, tensors={"w": payload.tensors["w"] * 2}
    )
    payload = Payload(kind="round", header={"round": 3, "ü": [1.5, None]}, tensors=WEIGHTS)
    answer = linked.ask(payload).result(SOON_S)
    assert (answer.kind, answer.header) == ("doubled", payload.header)
    np.testing.assert_array_equal(answer.tensors["w"], WEIGHTS["w"] * 2)
    (asked,) = runner.orders
    assert (asked.round, asked.purpose, asked.verb) == (3, "training", "work")
    eventually(lambda: linked.blobs == [], SOON_S, "no blob is left")
    np.testing.assert_array_equal(answer.tensors["w"], WEIGHTS["w"] * 2)


def test_an_answer_may_be_what_was_asked(linked: Linked) -> None:
    payload = Payload(kind="echo", tensors=WEIGHTS)
    answers = [linked.ask(payload, str(number)) for number in range(20)]
    for answer in answers:
        np.testing.assert_array_equal(answer.result(SOON_S).tensors["w"], WEIGHTS["w"])
    eventually(lambda: linked.blobs == [], SOON_S, "no blob is left")


def test_errors_come_back_as_themselves(linked: Linked) -> None:
    def refuse(payload: Payload) -> Payload:
        raise GangTimeout("g", 2.0, "others hold it")

    linked.runner.make = refuse
    with pytest.raises(GangTimeout, match="others hold it"):
        linked.ask(Payload(kind="x")).result(SOON_S)

    def break_down(payload: Payload) -> Payload:
        raise ZeroDivisionError("by zero")

    linked.runner.make = break_down
    with pytest.raises(WorkFailed, match="site paris: ZeroDivisionError: by zero"):
        linked.ask(Payload(kind="x")).result(SOON_S)


def test_what_cannot_be_sent_fails_alone(linked: Linked) -> None:
    with pytest.raises(Exception, match="JSON"):
        linked.ask(Payload(kind="x", header={"x": object()})).result(SOON_S)
    assert linked.ask(Payload(kind="x")).result(SOON_S).kind == "x"


def test_a_refusal_is_no_failure(linked: Linked) -> None:
    from fedpilot.mediator import GangRequest

    linked.runner.make = lambda payload: Payload(kind="refused", header={"reason": "full"})
    site = LinkedSite("paris", linked.link)
    asked = site.prepare(GangRequest(name="g", resources={"CPU": 1.0})).result(SOON_S)
    assert asked == Refusal("paris", "full")


def test_a_runner_that_dies_fails_what_is_open(linked: Linked) -> None:
    linked.runner.make = None
    answers = [linked.ask(Payload(kind="x", tensors=WEIGHTS), str(n)) for n in range(3)]
    eventually(lambda: len(linked.runner.orders) == 3, SOON_S, "they are at work")
    linked.runner.die()
    for answer in answers:
        assert isinstance(answer.exception(SOON_S), SiteLost)
    assert isinstance(linked.ask(Payload(kind="x"), "new").exception(SOON_S), SiteLost)
    assert linked.blobs == []


def test_closing_fails_what_is_open_and_ends_the_runner(linked: Linked) -> None:
    linked.runner.make = None
    answer = linked.ask(Payload(kind="x"))
    eventually(lambda: len(linked.runner.orders) == 1, SOON_S, "it is at work")
    linked.link.close("enough")
    linked.link.close()
    assert isinstance(answer.exception(SOON_S), SiteLost)
    assert isinstance(linked.ask(Payload(kind="x")).exception(SOON_S), SiteLost)
    eventually(lambda: linked.runner.ended == ["enough"], SOON_S, "the runner is told")


def test_events_are_told(linked: Linked) -> None:
    told: list[Payload] = []
    heard = threading.Event()

    def listen(payload: Payload) -> None:
        told.append(payload)
        heard.set()

    linked.link.listen(listen)
    linked.ask(Payload(kind="x")).result(SOON_S)
    event = pb.Happened(run="r", kind="worker_ready", header_json='{"worker": 1}')
    linked.runner.server.happened(event)
    assert heard.wait(SOON_S)
    assert told == [Payload(kind="worker_ready", header={"worker": 1})]
