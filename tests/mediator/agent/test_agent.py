"""The agent does each order once, and brings its answer until somebody takes it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

from agent_labs import GANG, MODEL, RUN, Lab, played, process, until, work
from fake_mediator import FakeMediator, fake_mediator
from fedpilot.mediator.agent.runner.process import RunnerProcess
from fedpilot.mediator.core.links import LinkSpeed
from fedpilot.mediator.wire.failures import error_of
from fedpilot.mediator.wire.messages import link_figures, payload_of
from site_agents import PARIS, QUICK, running


def test_an_order_with_a_model_is_answered_with_a_model(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent()):
            session = await lab.mediator.next_session()
            assert (session.hello.site, session.hello.version) == ("paris", "1.2.3")
            assert list(session.hello.held) == []
            await lab.prepared(session)
            store = lab.mediator.store
            await session.order(RUN, "work/1", "work", work("echo", **MODEL), store)
            taken = await session.wait_for("taken", key="work/1")
            assert taken.id.run == RUN
            answer = await session.wait_for("answer", key="work/1")
            found = payload_of(answer.done, store)
            np.testing.assert_array_equal(found.tensors["w"], MODEL["w"])
            await session.take(RUN, "work/1")
            await until(lambda: lab.forgot("work/1"), "the runner may forget it")

    played(tmp_path, play)


def test_a_site_says_what_its_admin_declares_of_its_link_and_how_long_heartbeats_take(
    tmp_path: Path,
) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent(link=LinkSpeed(up=1e6))):
            session = await lab.mediator.next_session()
            assert link_figures(session.hello.link)["up"] == 1e6
            first = await session.wait_for("heartbeat")
            assert first.round_trip_s == 0.0
            while not (beat := await session.wait_for("heartbeat")).round_trip_s:
                pass
            assert 0 < beat.round_trip_s < 60
            await session.order(RUN, "prepare", "prepare", GANG, lab.mediator.store)
            answer = await session.wait_for("answer", key="prepare")
            promise = json.loads(answer.done.header_json)
            assert promise["link"] == {"up": 1e6}
            assert promise["vnodes"] >= 1

    played(tmp_path, play)


def test_an_order_that_comes_again_is_worked_on_once_and_answered_again(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent()):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            for _ in range(3):
                await session.order(RUN, "work/1", "work", work("echo"), lab.mediator.store)
            first = await session.wait_for("answer", key="work/1")
            await session.order(RUN, "work/1", "work", work("echo"), lab.mediator.store)
            assert await session.wait_for("answer", key="work/1") == first
            assert lab.worked().count("work/1") == 1

    played(tmp_path, play)


def test_work_reaches_its_runner_in_the_order_in_which_it_came(tmp_path: Path) -> None:
    """The second needs the model that the first brings."""

    async def play(lab: Lab) -> None:
        agent = lab.agent()
        async with running(agent):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            store, slow = lab.mediator.store, asyncio.Event()
            lab.mediator.held.append(slow)
            await session.order(RUN, "work/1", "work", work("echo", **MODEL), store)
            await until(lambda: lab.mediator.offsets != [], "its model is on its way")
            await session.order(RUN, "work/2", "work", work("echo"), store)
            await until(lambda: len(agent._work.held()) == 2, "both are there")
            await asyncio.sleep(0.2)
            before = lab.worked()
            assert "work/2" not in before
            slow.set()
            await until(lambda: len(lab.worked()) == len(before) + 2, "both are worked on")
            assert lab.worked()[-2:] == ["work/1", "work/2"]

    played(tmp_path, play)


def test_a_model_that_several_orders_name_comes_once(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent()):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            for number in range(4):
                order = work("wait", **MODEL)
                await session.order(RUN, f"work/{number}", "work", order, lab.mediator.store)
            for number in range(4):
                await session.wait_for("taken", key=f"work/{number}")
            came = sum(lab.mediator.gate.bytes.values())
            assert MODEL["w"].nbytes <= came < 1.1 * MODEL["w"].nbytes

    played(tmp_path, play)


def test_models_that_no_run_needs_any_more_are_removed(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent()):
            session = await lab.mediator.next_session()
            await lab.prepared(session)

            def there() -> int:
                return len(list(lab.home.blobs.iterdir()))

            for number in range(6):
                key, model = f"work/{number}", {"w": MODEL["w"] + number}
                await session.order(RUN, key, "work", work("train", **model), lab.mediator.store)
                answer = await session.wait_for("answer", key=key)
                assert answer.done.kind == "train"
                await session.take(RUN, key)
                await until(partial(lab.forgot, key), "the answer is taken")
                await until(lambda: there() <= 2, "two models are left")
            assert there() == 2, "the next order may name one of them"
            await session.order(RUN, "release", "release", work("echo"), lab.mediator.store)
            await session.wait_for("answer", key="release")
            await session.take(RUN, "release")
            await until(lambda: there() == 0, "nothing is left")

    played(tmp_path, play)


@pytest.fixture
def brings_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpilot.mediator.agent.orders.order_transfers.AGAIN_S", 0.1)


@pytest.mark.usefixtures("brings_again_soon")
def test_an_answer_stays_until_it_was_brought_whatever_else_comes(tmp_path: Path) -> None:
    room = replace(QUICK, blob_bytes=5 * MODEL["w"].nbytes // 2)

    async def play(lab: Lab) -> None:
        async with running(lab.agent(settings=room)):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            gate = lab.mediator.gate
            gate.refused_pushes = "nobody waits for it"
            await session.order(RUN, "work/1", "work", work("train", **MODEL), lab.mediator.store)
            await until(lambda: "work/1" in gate.offered, "its answer is offered")
            other = {"w": MODEL["w"] + 2}
            await session.order(RUN, "work/2", "work", work("train", **other), lab.mediator.store)
            full = await session.wait_for("answer", key="work/2")
            assert "its store of models is full" in str(error_of(PARIS, full.failure))
            gate.refused_pushes = ""
            answer = await session.wait_for("answer", key="work/1")
            assert answer.done.kind == "train"

    played(tmp_path, play)


def test_events_of_runners_are_passed_on_under_their_own_run(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent()):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            await session.order(RUN, "work/1", "work", work("tell"), lab.mediator.store)
            event = await session.wait_for("happened")
            assert (event.run, event.kind) == (RUN, "told")

    played(tmp_path, play)


@pytest.mark.usefixtures("brings_again_soon")
def test_an_answer_that_nobody_takes_yet_is_brought_until_somebody_does(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent()):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            store, gate = lab.mediator.store, lab.mediator.gate
            await session.order(RUN, "work/1", "work", work("wait", **MODEL), store)
            await session.wait_for("taken", key="work/1")
            gate.no = "nobody waits for it"
            (lab.run_folder / "go").touch()
            await until(lambda: len(gate.offered) >= 2, "it is offered again")
            gate.no = ""
            assert (await session.wait_for("answer", key="work/1")).done.blob.digest

    played(tmp_path, play)


def test_an_order_that_is_withdrawn_is_forgotten_here_and_at_its_runner(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent()):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            await session.order(RUN, "work/1", "work", work("wait"), lab.mediator.store)
            await session.wait_for("taken", key="work/1")
            await session.take(RUN, "work/1")
            (lab.run_folder / "go").touch()
            await until(lambda: lab.forgot("work/1"), "the runner may forget it")
            await session.end()
            session = await lab.mediator.next_session()
            assert list(session.hello.held) == []

    played(tmp_path, play)


def test_runs_and_models_of_long_ago_are_removed_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpilot.mediator.agent.agent.TIDY_S", 0.05)

    async def play(lab: Lab) -> None:
        run, blob = lab.home.run_folder("old"), lab.home.blobs / ("a" * 64)
        async with running(lab.agent()):
            await lab.prepared(await lab.mediator.next_session())
            for _ in range(2):
                run.mkdir()
                blob.write_bytes(b"a model")
                os.utime(blob, (0, 0))
                os.utime(run, (0, 0))
                os.utime(lab.run_folder, (0, 0))
                await until(lambda: not run.exists() and not blob.exists(), "they are removed")
            assert lab.run_folder.exists(), "somebody is at work in it"

    played(tmp_path, play)


def test_the_agent_opens_no_port_and_imports_neither_ray_nor_torch(tmp_path: Path) -> None:
    async def play(mediator: FakeMediator) -> None:
        lab = Lab(mediator, tmp_path)
        lab.credentials.write(lab.home.credentials_folder)
        agent = process(lab)
        try:
            session = await mediator.next_session()
            await lab.prepared(session)
            seen = psutil.Process(agent.pid)
            assert seen.net_connections("tcp"), "its session is one"
            assert [c for c in seen.net_connections("tcp") if c.status == psutil.CONN_LISTEN] == []
            mapped = " ".join(m.path for m in seen.memory_maps())
            assert "_raylet" not in mapped
            assert "libtorch" not in mapped
        finally:
            agent.send_signal(signal.SIGKILL)
            agent.wait()
            with suppress(AttributeError):
                RunnerProcess.find(lab.run_folder).kill()  # type: ignore[union-attr]

    async def whole() -> None:
        async with fake_mediator(tmp_path / "mediator") as mediator, asyncio.timeout(40):
            await play(mediator)

    asyncio.run(whole())
