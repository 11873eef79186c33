"""The agent does each order once and brings each answer, whatever breaks meanwhile."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import fake_runner
import site_agents
from fake_mediator import Conversation, FakeMediator, fake_mediator, wire
from fedpilot.mediator.agent.agent import SiteAgent
from fedpilot.mediator.agent.errors import SiteDismissed
from fedpilot.mediator.agent.home import SiteHome
from fedpilot.mediator.agent.runner.process import RayChoice, RunnerProcess, RunnerSettings
from fedpilot.mediator.agent.scans.ray_watchdog import NOT_LOOKED, Look
from fedpilot.mediator.core.disk import Space
from fedpilot.mediator.core.restarts import RestartSettings
from fedpilot.mediator.errors import PolicyRefused, RunnerDied, RunnersSpent, SiteLost
from fedpilot.mediator.federation.site import GangRequest
from fedpilot.mediator.identity.files import write_text
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.failures import error_of
from fedpilot.mediator.wire.messages import Capacity, payload_of
from fedpilot.mediator.workload import Payload
from site_agents import PARIS, QUICK, SetRay, running

RUN = "run-1"
GANG = Payload(
    kind="gang", header=GangRequest(name="g", resources={"CPU": 1.0}, at_most=2).to_json()
)
MODEL = {"w": np.arange(50_000, dtype=np.float32)}


class Lab:
    """A mediator, a home folder, and what an agent said."""

    def __init__(self, mediator: FakeMediator, folder: Path) -> None:
        self.mediator = mediator
        self.home = SiteHome(folder / "paris")
        self.credentials = mediator.credentials(PARIS)
        self.said: list[tuple[str, dict[str, Any]]] = []
        mediator.runs = [RUN]

    def agent(self, address: str = "", **options: Any) -> SiteAgent:
        """An agent of the home folder, at the mediator or at another address."""

        def say(event: str, /, **fields: Any) -> None:
            self.said.append((event, fields))

        return site_agents.agent(
            self.home, address or self.mediator.address, self.credentials, say=say, **options
        )

    @property
    def run_folder(self) -> Path:
        return self.home.run_folder(RUN)

    def worked(self) -> list[str]:
        """The keys of what a runner has worked on."""
        return (self.run_folder / "worked").read_text().split()

    def last(self) -> str:
        """The event that was told last."""
        return self.said[-1][0] if self.said else ""

    def told(self) -> list[str]:
        """All events that were told."""
        return [name for name, _ in self.said]

    def forgot(self, key: str) -> bool:
        """Whether the runner was told that an answer of it is where it belongs."""
        file = self.run_folder / "taken"
        return file.exists() and key in file.read_text().split()

    def pid(self) -> int:
        """Of the run's runner."""
        runner = RunnerProcess.find(self.run_folder)
        assert runner is not None
        assert runner.pid is not None
        return runner.pid

    def runs_here(self) -> bool:
        """Whether the run has a runner."""
        return RunnerProcess.find(self.run_folder) is not None

    async def prepared(self, session: Conversation) -> None:
        """Have the run's runner started."""
        await session.order(RUN, "prepare", "prepare", GANG, self.mediator.store)
        answer = await session.wait_for("answer", key="prepare")
        assert answer.done.kind == "promised"
        await session.take(RUN, "prepare")


@asynccontextmanager
async def lab(folder: Path) -> AsyncIterator[Lab]:
    async with fake_mediator(folder / "mediator") as mediator:
        made = Lab(mediator, folder)
        with made.home.locked():
            try:
                yield made
            finally:
                for path in made.home.run_folders().values():
                    if runner := RunnerProcess.find(path):
                        runner.kill()


def played(folder: Path, play: Callable[[Lab], Awaitable[None]]) -> None:
    """Play a test in an event loop of its own."""

    async def whole() -> None:
        async with lab(folder) as made, asyncio.timeout(150):
            await play(made)

    asyncio.run(whole())


async def until(true: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    """Poll until something is true."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.02)


def work(kind: str, **tensors: Any) -> Payload:
    """An order for the puppet."""
    return Payload(kind=kind, header={"round": 3}, tensors=tensors)


# -- orders and answers ---------------------------------------------------------------------------


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


def test_a_released_runner_ends_once_that_is_known(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent()):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            pid = lab.pid()
            await session.order(RUN, "release", "release", work("echo"), lab.mediator.store)
            await session.wait_for("answer", key="release")
            await session.take(RUN, "release")
            await until(lambda: not psutil.pid_exists(pid), "the runner ends")
            await session.order(RUN, "release", "release", work("echo"), lab.mediator.store)
            again = await session.wait_for("answer", key="release")
            assert again.done.kind == "done"

    played(tmp_path, play)


def test_a_run_that_is_over_before_its_runner_is_there_leaves_none(tmp_path: Path) -> None:
    starting, go = threading.Event(), threading.Event()

    def start(folder: Path, settings: RunnerSettings) -> RunnerProcess:
        starting.set()
        assert go.wait(60)
        return fake_runner.start(folder, settings)

    async def play(lab: Lab) -> None:
        async with running(lab.agent(start=start)):
            session = await lab.mediator.next_session()
            await session.order(RUN, "prepare", "prepare", GANG, lab.mediator.store)
            await until(starting.is_set, "its runner is being started")
            await session.order(RUN, "release", "release", work("echo"), lab.mediator.store)
            await session.order(RUN, "commit", "commit", work("echo"), lab.mediator.store)
            await session.wait_for("answer", key="commit")  # so the release has come as well
            go.set()
            await session.wait_for("answer", key="release")
            await session.take(RUN, "release")
            await until(lambda: not lab.runs_here(), "no runner is left")

    played(tmp_path, play)


def test_a_run_that_comes_back_while_its_runner_still_ends_gets_another(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent()):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            pid = lab.pid()
            await session.order(RUN, "release", "release", work("echo"), lab.mediator.store)
            await session.wait_for("answer", key="release")
            await session.take(RUN, "release")
            await lab.prepared(session)
            assert lab.pid() != pid

    played(tmp_path, play)


def test_a_runner_that_does_not_start_leaves_nothing_of_its_run(tmp_path: Path) -> None:
    def start(folder: Path, settings: Any) -> Any:
        raise SiteLost(PARIS, "no more processes")

    async def play(lab: Lab) -> None:
        agent = lab.agent(start=start)
        async with running(agent):
            session = await lab.mediator.next_session()
            await session.order(RUN, "prepare", "prepare", GANG, lab.mediator.store)
            answer = await session.wait_for("answer", key="prepare")
            assert "no more processes" in answer.failure.message
            assert agent._runners.busy() == frozenset()

    played(tmp_path, play)


def test_a_run_that_holds_nothing_here_is_told_so(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent()):
            session = await lab.mediator.next_session()
            await session.order(RUN, "commit", "commit", work("echo"), lab.mediator.store)
            answer = await session.wait_for("answer", key="commit")
            error = error_of(PARIS, answer.failure)
            assert isinstance(error, SiteLost), "the run may go on without it"
            assert "holds nothing for run-1: its part has ended" in error.reason

    played(tmp_path, play)


# -- what breaks ----------------------------------------------------------------------------------


def test_answers_are_sent_in_every_session_until_they_are_taken(tmp_path: Path) -> None:
    """With their blobs offered again: it may be another mediator, which knows of none."""

    async def play(lab: Lab) -> None:
        async with running(lab.agent()):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            order = work("echo", **MODEL)
            await session.order(RUN, "work/1", "work", order, lab.mediator.store)
            first = await session.wait_for("answer", key="work/1")
            for offers in (2, 3):
                await session.end()
                session = await lab.mediator.next_session()
                assert [id.key for id in session.hello.held] == ["work/1"]
                assert await session.wait_for("answer", key="work/1") == first
                assert lab.mediator.gate.offered == ["work/1"] * offers
            await session.take(RUN, "work/1")
            await until(lambda: lab.forgot("work/1"), "the runner may forget it")
            await session.end()
            session = await lab.mediator.next_session()
            assert list(session.hello.held) == []

    played(tmp_path, play)


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


def test_work_goes_on_while_the_link_is_cut(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with wire(lab.mediator.address) as link, running(lab.agent(link.address)):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            order = work("wait", **MODEL)
            await session.order(RUN, "work/1", "work", order, lab.mediator.store)
            await session.wait_for("taken", key="work/1")
            link.cut()
            await until(lambda: lab.last() == "disconnected", "the cut is noticed")
            (lab.run_folder / "go").touch()
            link.mend()
            session = await lab.mediator.next_session()
            assert [id.key for id in session.hello.held] == ["work/1"]
            answer = await session.wait_for("answer", key="work/1")
            found = payload_of(answer.done, lab.mediator.store)
            np.testing.assert_array_equal(found.tensors["w"], MODEL["w"])
            assert lab.worked().count("work/1") == 1

    played(tmp_path, play)


def test_a_link_that_swallows_everything_is_noticed_and_left(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        quick = replace(QUICK, silent_s=1.0)
        async with (
            wire(lab.mediator.address) as link,
            running(lab.agent(link.address, settings=quick)),
        ):
            await lab.mediator.next_session()
            await until(lambda: lab.last() == "connected", "it is connected")
            link.swallows = True
            await until(lambda: lab.last() == "disconnected", "the silence is noticed")
            assert "nothing was heard of the mediator for 1 s" in lab.said[-1][1]["reason"]
            link.cut()
            link.swallows = False
            link.mend()
            await lab.mediator.next_session()

    played(tmp_path, play)


def test_a_link_that_a_model_fills_is_not_silent(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        quick = replace(QUICK, silent_s=2.0)
        big = {"w": np.random.default_rng(1).random(200_000)}
        async with (
            wire(lab.mediator.address) as link,
            running(lab.agent(link.address, settings=quick)),
        ):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            link.bytes_per_s = 1_600_000 / 6
            await session.order(RUN, "work/1", "work", work("echo", **big), lab.mediator.store)
            await session.wait_for("taken", key="work/1")
            answer = await session.wait_for("answer", key="work/1")
            assert answer.WhichOneof("result") == "done"
            assert lab.told() == ["connected"], "the session ended meanwhile"
            assert link.connections == 2, "control and data have a connection each"

    played(tmp_path, play)


def test_a_download_goes_on_where_the_link_was_cut(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        big = {"w": np.random.default_rng(1).random(500_000)}
        async with wire(lab.mediator.address) as link, running(lab.agent(link.address)):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            link.cut_after = link.bytes + 3_000_000
            await session.order(RUN, "work/1", "work", work("wait", **big), lab.mediator.store)
            await until(lambda: not link._whole, "the link is cut in the middle")
            link.mend()
            session = await lab.mediator.next_session()
            assert [id.key for id in session.hello.held] == ["work/1"]
            await session.wait_for("taken", key="work/1")
            assert lab.mediator.offsets[0] == 0
            assert lab.mediator.offsets[-1] > 0, "what had come was fetched again"

    played(tmp_path, play)


def test_a_runner_that_dies_is_the_loss_of_the_site_with_the_end_of_its_log(
    tmp_path: Path,
) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent()):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            await session.order(RUN, "work/1", "work", work("wait"), lab.mediator.store)
            await session.order(RUN, "work/2", "work", work("die"), lab.mediator.store)
            for key in ("work/1", "work/2"):
                answer = await session.wait_for("answer", key=key)
                error = error_of(PARIS, answer.failure)
                assert isinstance(error, RunnerDied)
                assert isinstance(error, SiteLost), "the run may go on without it"
                assert "ended with exit code 1" in error.reason
                assert "the roof has fallen in" in error.reason
            await until(lambda: lab.last() == "runner_ended", "it is said")
            (lab.run_folder / "worked").unlink()
            await lab.prepared(session)
            assert lab.worked() == ["prepare"]

    played(tmp_path, play)


HASTY = replace(QUICK, restarts=RestartSettings(first_pause_s=0.01, longest_pause_s=0.02))
"""Starts the next runner at once."""


async def killed_at_work(lab: Lab, session: Conversation, number: int) -> Exception:
    """Have the run's runner be started, and be killed by an order; the answer."""
    await lab.prepared(session)
    await session.order(RUN, f"work/{number}", "work", work("killed"), lab.mediator.store)
    answer = await session.wait_for("answer", key=f"work/{number}")
    return error_of(PARIS, answer.failure)


def test_a_crash_that_repeats_at_the_same_place_does_not_loop(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent(settings=HASTY)):
            session = await lab.mediator.next_session()
            for number in (1, 2):
                error = await killed_at_work(lab, session, number)
                assert type(error) is RunnerDied
                assert "killed by SIGKILL" in error.reason
            error = await killed_at_work(lab, session, 3)
            assert isinstance(error, RunnersSpent)
            assert "3 times at work of round 3" in error.reason
            assert "killed by SIGKILL" in error.reason
            await session.order(RUN, "prepare", "prepare", GANG, lab.mediator.store)
            refused = await session.wait_for("answer", key="prepare")
            assert isinstance(error_of(PARIS, refused.failure), RunnersSpent)
            assert not lab.runs_here()

    played(tmp_path, play)


def test_a_run_that_was_over_has_its_whole_budget_again(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        agent = lab.agent(settings=HASTY)
        async with running(agent):
            session = await lab.mediator.next_session()
            for number in (1, 2, 3):
                error = await killed_at_work(lab, session, number)
            assert isinstance(error, RunnersSpent)
            lab.mediator.runs = []  # it has failed, and is resumed later
            await until(lambda: not agent._runners.deaths(RUN), "the deaths are forgotten")
            lab.mediator.runs = [RUN]
            await lab.prepared(session)

    played(tmp_path, play)


def test_a_runner_that_dies_before_it_has_promised_is_started_again(tmp_path: Path) -> None:
    started: list[Path] = []

    def start(folder: Path, settings: RunnerSettings) -> RunnerProcess:
        process = fake_runner.start(folder, settings)
        started.append(folder)
        if len(started) == 1:
            process.kill()
        return process

    async def play(lab: Lab) -> None:
        async with running(lab.agent(start=start)):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            assert len(started) == 2

    played(tmp_path, play)


def test_a_run_that_is_released_while_its_next_runner_waits_gets_none(tmp_path: Path) -> None:
    patient = replace(QUICK, restarts=RestartSettings(first_pause_s=3600.0, longest_pause_s=3600.0))

    async def play(lab: Lab) -> None:
        async with running(lab.agent(settings=patient)):
            session = await lab.mediator.next_session()
            await killed_at_work(lab, session, 1)
            await session.order(RUN, "prepare", "prepare", GANG, lab.mediator.store)
            await session.order(RUN, "release", "release", work("echo"), lab.mediator.store)
            answer = await session.wait_for("answer", key="prepare")
            assert "was released" in str(error_of(PARIS, answer.failure))
            await session.wait_for("answer", key="release")
            assert not lab.runs_here()

    played(tmp_path, play)


class Disk:
    """A disk of 1 GB, of which others leave so much to the site."""

    def __init__(self, blobs: Path, left: int) -> None:
        self.blobs, self.left = blobs, left

    def __call__(self, folder: Path) -> Space:
        mine = sum(each.stat().st_size for each in self.blobs.iterdir())
        return Space(total=1_000_000_000, free=self.left - mine)


def test_a_full_disk_is_the_sites_trouble_until_it_has_room(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        disk = Disk(lab.home.blobs, 60_000_000)
        async with running(lab.agent(space=disk)):
            session = await lab.mediator.next_session()
            assert not (await session.wait_for("heartbeat")).trouble
            disk.left = 10_000_000
            while not (found := (await session.wait_for("heartbeat")).trouble):
                pass
            said = "the disk of its home is full: 10 of 1000 MB are free, and 50 MB have to be"
            assert found == said
            await session.order(RUN, "prepare", "prepare", GANG, lab.mediator.store)
            refused = await session.wait_for("answer", key="prepare")
            assert said in refused.done.header_json
            await session.take(RUN, "prepare")
            disk.left = 60_000_000
            while (await session.wait_for("heartbeat")).trouble:
                pass
            await lab.prepared(session)
            assert lab.told().count("disk_in_trouble") == lab.told().count("disk_has_room") == 1

    played(tmp_path, play)


def test_models_that_nobody_needs_give_way_before_the_site_is_in_trouble(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        disk = Disk(lab.home.blobs, 90_000_000)
        old = lab.home.blobs / ("a" * 64)
        with old.open("wb") as file:
            file.truncate(30_000_000)
        async with running(lab.agent(space=disk)):
            session = await lab.mediator.next_session()
            await session.wait_for("heartbeat")
            assert old.exists()
            disk.left = 60_000_000
            await until(lambda: not old.exists(), "the model is removed")
            assert not (await session.wait_for("heartbeat")).trouble
            assert "disk_in_trouble" not in lab.told()

    played(tmp_path, play)


def test_runners_are_killed_when_their_ray_is_gone(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        ray = SetRay()
        async with running(lab.agent(watch=ray)):
            session = await lab.mediator.next_session()
            assert session.hello.capacity.total == {"CPU": 4.0}
            await lab.prepared(session)
            pid = lab.pid()
            await session.order(RUN, "work/1", "work", work("wait"), lab.mediator.store)
            await session.wait_for("taken", key="work/1")
            ray.trouble("the head does not answer")
            while not (await session.wait_for("heartbeat")).trouble:
                pass
            error = error_of(PARIS, (await session.wait_for("answer", key="work/1")).failure)
            assert isinstance(error, SiteLost)
            assert "the head does not answer" in str(error)
            await until(lambda: not psutil.pid_exists(pid), "the runner is gone")
            await session.order(RUN, "prepare", "prepare", GANG, lab.mediator.store)
            refused = await session.wait_for("answer", key="prepare")
            assert "the head does not answer" in refused.done.header_json
            await session.take(RUN, "prepare")
            ray.trouble("")
            while (await session.wait_for("heartbeat")).trouble:
                pass
            await lab.prepared(session)

    played(tmp_path, play)


def test_a_successor_that_finds_ray_gone_kills_what_it_has_adopted(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent(), release=False):
            await lab.prepared(await lab.mediator.next_session())
            pid = lab.pid()
        ray = SetRay()
        ray.set(Look(trouble=NOT_LOOKED))
        quick = replace(QUICK, first_look_s=0.1)
        async with running(lab.agent(watch=ray, settings=quick)):
            session = await lab.mediator.next_session()
            ray.set(Look(trouble=NOT_LOOKED, address="127.0.0.1:1"))
            await session.wait_for("heartbeat")
            assert psutil.pid_exists(pid), "nothing is known yet"
            ray.trouble("it is gone")
            await until(lambda: lab.last() == "runner_ended", "the runner is gone")

    played(tmp_path, play)


def test_a_successor_ends_what_an_agent_of_today_would_not_have_started(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent(), release=False):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            pid = lab.pid()
            await session.order(RUN, "work/1", "work", work("wait"), lab.mediator.store)
            await session.wait_for("taken", key="work/1")
        policy = tmp_path / "policy.yaml"
        policy.write_text("minimum_cohort: 5")
        async with running(lab.agent(policy=policy)):
            session = await lab.mediator.next_session()
            assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"
            reason = "the site's admin has changed its policy"
            assert ("runner_ended", {"run": RUN, "reason": reason}) in lab.said
            assert (list(session.hello.runs), list(session.hello.held)) == ([], [])
            await session.order(RUN, "work/1", "work", work("wait"), lab.mediator.store)
            error = error_of(PARIS, (await session.wait_for("answer", key="work/1")).failure)
            assert isinstance(error, SiteLost)
            assert reason in str(error)
            await lab.prepared(session)

    played(tmp_path, play)


def test_a_successor_ends_what_it_cannot_drive(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent(), release=False):
            await lab.prepared(await lab.mediator.next_session())
            pid = lab.pid()
        (lab.run_folder / "runner.json").write_text("")
        async with running(lab.agent()):
            session = await lab.mediator.next_session()
            assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"
            await lab.prepared(session)

    played(tmp_path, play)


def test_a_successor_kills_what_works_with_another_ray_than_its_own(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        choice = RayChoice(address="auto")
        async with running(lab.agent(watch=SetRay(), ray=choice), release=False):
            await lab.prepared(await lab.mediator.next_session())
            pid = lab.pid()
        ray = SetRay()
        there = ray.look
        ray.set(Look(trouble=NOT_LOOKED))
        quick = replace(QUICK, first_look_s=0.1)
        async with running(lab.agent(watch=ray, ray=choice, settings=quick)):
            await lab.mediator.next_session()
            ray.set(there)
            assert lab.pid() == pid, "it is the same one"
            ray.set(Look(trouble=NOT_LOOKED))
            ray.set(replace(there, address="127.0.0.1:6380"))
            await until(lambda: "runner_ended" in lab.told(), "the runner is gone")

    played(tmp_path, play)


def test_machines_that_cannot_be_written_down_are_so_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(lab: Lab) -> None:
        ray = SetRay()
        async with running(lab.agent(watch=ray)):
            await lab.mediator.next_session()
            with monkeypatch.context() as patching:
                patching.setattr("fedpilot.mediator.agent.home.write_text", no_room)
                ray.set(replace(ray.look, machines=frozenset({"m1"})))
            assert lab.home.machines() == frozenset()
            ray.set(replace(ray.look, capacity=Capacity(machines=1)))
            assert lab.home.machines() == {"m1"}

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    played(tmp_path, play)


def test_a_runner_whose_lease_is_not_renewed_ends(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        lab.mediator.lease_s = 1.0
        async with running(lab.agent()):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            pid = lab.pid()
            lab.mediator.lease_s = 1.0
            began = time.monotonic()
            await until(lambda: time.monotonic() > began + 2.0, "the lease would be over")
            assert psutil.pid_exists(pid), "renewals keep it"
            lab.mediator.runs = []
            await until(lambda: not psutil.pid_exists(pid), "it ends")

    played(tmp_path, play)


def process(lab: Lab) -> subprocess.Popen[str]:
    """An agent in a process of its own."""
    return subprocess.Popen(
        [sys.executable, site_agents.__file__, str(lab.home.folder), lab.mediator.address],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_successor_of_a_killed_agent_goes_on_with_its_runner(tmp_path: Path) -> None:
    async def play(mediator: FakeMediator) -> None:
        lab = Lab(mediator, tmp_path)
        lab.credentials.write(lab.home.credentials_folder)
        first = process(lab)
        successor = None
        try:
            session = await mediator.next_session()
            await lab.prepared(session)
            pid = lab.pid()
            order = work("wait", **MODEL)
            await session.order(RUN, "work/1", "work", order, mediator.store)
            await session.order(RUN, "work/2", "work", work("echo", **MODEL), mediator.store)
            await session.wait_for("answer", key="work/2")
            first.kill()
            first.wait()
            successor = process(lab)
            session = await mediator.next_session()
            assert [id.key for id in session.hello.held] == ["work/1", "work/2"]
            assert (await session.wait_for("answer", key="work/2")).done.blob.digest
            (lab.run_folder / "go").touch()
            answer = await session.wait_for("answer", key="work/1")
            found = payload_of(answer.done, mediator.store)
            np.testing.assert_array_equal(found.tensors["w"], MODEL["w"])
            assert lab.pid() == pid
            assert lab.worked() == ["prepare", "work/1", "work/2"]
        finally:
            for each in (first, successor):
                if each is not None:
                    each.kill()
                    each.wait()
            if runner := RunnerProcess.find(lab.run_folder):
                runner.kill()

    async def whole() -> None:
        async with fake_mediator(tmp_path / "mediator") as mediator, asyncio.timeout(50):
            await play(mediator)

    asyncio.run(whole())


def test_an_agent_that_is_ended_leaves_its_runners_to_the_next_one(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent(), release=False):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            pid = lab.pid()
        assert lab.said[-1] == ("runners_left", {"runs": [RUN], "lease_s": 30.0})
        async with running(lab.agent(), release=True):
            await lab.mediator.next_session()
            assert ("runner_adopted", {"run": RUN, "pid": pid}) in lab.said
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"

    played(tmp_path, play)


# -- the mediator's last word ---------------------------------------------------------------------


def test_a_site_that_is_dismissed_ends_its_runners_and_itself(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent(), release=False) as agent:
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            pid = lab.pid()
            farewell = pb.Farewell(reason="it was removed", final=True)
            await session.send(pb.ToSite(farewell=farewell))
            with pytest.raises(SiteDismissed, match="it was removed"):
                await agent
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"

    played(tmp_path, play)


def hostile() -> dict[str, pb.ToSite]:
    """What no mediator says."""

    def order(run: str, key: str = "work/1", verb: str = "prepare", **more: Any) -> pb.ToSite:
        header = json.dumps(GANG.header)
        id = pb.OrderId(run=run, key=key)
        return pb.ToSite(order=pb.Order(id=id, verb=verb, header_json=header, **more))

    return {
        "a path in a run's name": order("../../etc"),
        "an absolute path as a run": order("/tmp/run"),
        "a hidden run": order(".ssh"),
        "a run's name with a NUL": order("run\0x"),
        "a run without a name": order(""),
        "a key with a line break": order(RUN, key="work\n1"),
        "a verb that there is not": order(RUN, verb="explode"),
        "a command in a run's name": order(RUN, verb="command"),
        "a digest that is a path": order(RUN, blob=pb.Blob(digest="../" * 21 + "x", size=3)),
        "a header that is no JSON": pb.ToSite(
            order=pb.Order(id=pb.OrderId(run=RUN, key="k"), verb="prepare", header_json="{")
        ),
        "a gang of nonsense": pb.ToSite(
            order=pb.Order(
                id=pb.OrderId(run=RUN, key="k"),
                verb="prepare",
                header_json=json.dumps({**GANG.header, "policy": "x", "workers": "y"}),
            )
        ),
        "a gang of fewer than none": pb.ToSite(
            order=pb.Order(
                id=pb.OrderId(run=RUN, key="k"),
                verb="prepare",
                header_json=json.dumps({**GANG.header, "workers": -3}),
            )
        ),
        "the answer of an order that was never given": pb.ToSite(
            answer_taken=pb.AnswerTaken(id=pb.OrderId(run="../x", key="y"))
        ),
        "leases of runs that are not here": pb.ToSite(renewal=pb.Renewal(runs=["../x", "y"])),
    }


@pytest.mark.parametrize("name", hostile())
def test_hostile_messages_start_nothing_and_end_nothing(tmp_path: Path, name: str) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent()):
            session = await lab.mediator.next_session()
            await session.send(hostile()[name])
            await session.wait_for("heartbeat")
            await session.wait_for("heartbeat")
            assert list(lab.home.runs.iterdir()) == []
            assert [p.name for p in lab.home.blobs.iterdir()] == []
            await lab.prepared(session)

    played(tmp_path, play)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        pytest.param(1, pb.ToSite(renewal=pb.Renewal()), id="a message that is repeated"),
        pytest.param(99, pb.ToSite(renewal=pb.Renewal()), id="messages that are left out"),
        pytest.param(2, pb.ToSite(welcome=pb.Welcome()), id="a second welcome"),
        pytest.param(2, pb.ToSite(farewell=pb.Farewell(reason="x")), id="a farewell"),
    ],
)
def test_a_session_that_cannot_go_on_is_begun_anew(
    tmp_path: Path, number: int, message: pb.ToSite
) -> None:
    async def play(lab: Lab) -> None:
        agent = lab.agent()
        async with running(agent):
            session = await lab.mediator.next_session()
            await session.wait_for("heartbeat")
            number_ = session.number + 1 if number == 2 else number
            await session.send(message, number=number_)
            await lab.mediator.next_session()
            await until(lambda: [e for e, _ in lab.said].count("connected") == 2, "it is back")

    played(tmp_path, play)


def test_a_mediator_that_says_nothing_is_given_up_and_dialled_again(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        lab.mediator.greets = False
        async with running(lab.agent(settings=replace(QUICK, welcome_s=0.3))):
            for _ in range(3):
                await lab.mediator.next_session()
            assert [event for event, _ in lab.said] == ["disconnected"]

    played(tmp_path, play)


@pytest.mark.parametrize("lease_s", [0.0, 3_601.0, math.inf, math.nan])
def test_a_lease_without_an_end_is_none(tmp_path: Path, lease_s: float) -> None:
    async def play(lab: Lab) -> None:
        lab.mediator.lease_s = lease_s
        async with running(lab.agent()):
            await until(lambda: lab.last() == "disconnected", "the session is broken off")
            assert "a lease of" in lab.said[-1][1]["reason"]

    played(tmp_path, play)


# -- the site's own rules -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "asked", "found"),
    [
        pytest.param("resources: {vnodes: 1}", {"workers": 2}, "resources.vnodes", id="too many"),
        pytest.param("resources: {cpus: 0.5}", {}, "resources.cpus", id="not even one"),
        pytest.param("resources: {cpu: 0.5}", {}, "own log says", id="a policy that is wrong"),
    ],
)
def test_the_policy_refuses_a_gang_before_a_runner_starts(
    tmp_path: Path, rules: str, asked: dict[str, Any], found: str
) -> None:
    async def play(lab: Lab) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text(rules)
        async with running(lab.agent(policy=policy)):
            session = await lab.mediator.next_session()
            gang = Payload(kind="gang", header={**GANG.header, **asked})
            await session.order(RUN, "prepare", "prepare", gang, lab.mediator.store)
            answer = await session.wait_for("answer", key="prepare")
            assert answer.done.kind == "refused"
            assert found in answer.done.header_json
            assert str(tmp_path) not in answer.done.header_json
            assert not lab.run_folder.exists()

    played(tmp_path, play)


def test_a_site_has_a_part_in_so_many_runs_at_most(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent(settings=replace(QUICK, most_runs=1))):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            await session.order("run-2", "prepare", "prepare", GANG, lab.mediator.store)
            answer = await session.wait_for("answer", key="prepare")
            assert answer.done.kind == "refused"
            assert "a part in 1 runs already" in answer.done.header_json
            assert not lab.home.run_folder("run-2").exists()

    played(tmp_path, play)


def test_a_gang_of_any_size_is_cut_down_to_what_the_policy_allows(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text("resources: {cpus: 1}")
        async with running(lab.agent(policy=policy)):
            session = await lab.mediator.next_session()
            await session.order(RUN, "prepare", "prepare", GANG, lab.mediator.store)
            answer = await session.wait_for("answer", key="prepare")
            assert json.loads(answer.done.header_json) == {"vnodes": 1}

    played(tmp_path, play)


@pytest.mark.parametrize("way", ["to_site", "from_site"])
def test_bytes_beyond_the_policy_do_not_cross(tmp_path: Path, way: str) -> None:
    async def play(lab: Lab) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text(f"bytes_per_round: {{{way}: 250000}}")
        async with running(lab.agent(policy=policy)):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            store = lab.mediator.store
            await session.order(RUN, "work/1", "work", work("echo", **MODEL), store)
            assert (await session.wait_for("answer", key="work/1")).done.blob.size
            other = {"w": MODEL["w"] + 1}
            await session.order(RUN, "work/2", "work", work("echo", **other), store)
            failure = (await session.wait_for("answer", key="work/2")).failure
            error = error_of(PARIS, failure)
            assert isinstance(error, PolicyRefused)
            assert error.rule == f"bytes_per_round.{way}"

    played(tmp_path, play)


def test_the_next_agent_books_an_answer_once_in_its_round(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text("bytes_per_round: {to_site: 1MB, from_site: 1MB}")
        async with running(lab.agent(policy=policy), release=False):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            await session.order(RUN, "work/1", "work", work("wait", **MODEL), lab.mediator.store)
            await session.wait_for("taken", key="work/1")
        (lab.run_folder / "go").touch()
        for _ in range(2):
            async with running(lab.agent(policy=policy), release=False):
                session = await lab.mediator.next_session()
                answer = await session.wait_for("answer", key="work/1")
                size = answer.done.blob.size
        books = json.loads(lab.home.traffic.read_text())
        assert books["rounds"][f"{RUN}/3"]["from_site"] == size, "not twice"
        assert list(books["rounds"]) == [f"{RUN}/3"]
        async with running(lab.agent(policy=policy)):
            await lab.mediator.next_session()

    played(tmp_path, play)


def test_a_key_that_is_ordered_anew_is_booked_anew(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text("bytes_per_round: {to_site: 450000}")
        agent = lab.agent(policy=policy)
        async with running(agent):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            for number in range(3):
                order = work("echo", w=MODEL["w"] + number)
                await session.order(RUN, "work/1", "work", order, lab.mediator.store)
                answer = await session.wait_for("answer", key="work/1")
                await session.take(RUN, "work/1")
            error = error_of(PARIS, answer.failure)
            assert isinstance(error, PolicyRefused)
            assert error.rule == "bytes_per_round.to_site"
            spending = agent._at_work._spending
            await until(lambda: not spending._crossings, "nothing is on its way")

    played(tmp_path, play)


def test_an_answer_that_the_mediator_wants_again_and_again_is_booked_as_often(
    tmp_path: Path,
) -> None:
    async def play(lab: Lab) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text("bytes_per_day: {from_site: 450000}")
        async with running(lab.agent(policy=policy)):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            store = lab.mediator.store
            await session.order(RUN, "work/1", "work", work("echo", **MODEL), store)
            for _ in range(3):  # at first it is there: the answer is the order's own model
                answer = await session.wait_for("answer", key="work/1")
                assert store.remove(answer.done.blob.digest), "it is there"
                await session.end()
                session = await lab.mediator.next_session()
            answer = await session.wait_for("answer", key="work/1")
            error = error_of(PARIS, answer.failure)
            assert isinstance(error, PolicyRefused)
            assert error.rule == "bytes_per_day.from_site"

    played(tmp_path, play)


@pytest.mark.parametrize("way", ["to_site", "from_site"])
def test_an_order_is_answered_though_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    def full(path: Path, text: str, mode: int) -> None:
        if f"{way}/" in text:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write_text(path, text, mode)

    monkeypatch.setattr("fedpilot.mediator.agent.orders.traffic.write_text", full)

    async def play(lab: Lab) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text("bytes_per_day: {to_site: 1MB, from_site: 1MB}")
        async with running(lab.agent(policy=policy)):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            order = work("echo", **MODEL)
            await session.order(RUN, "work/1", "work", order, lab.mediator.store)
            answer = await session.wait_for("answer", key="work/1")
            assert isinstance(error_of(PARIS, answer.failure), SiteLost), "others may do it"
            assert "No space left on device" in answer.failure.message
            assert str(tmp_path) not in answer.failure.message, "its own log says more"

    played(tmp_path, play)


@pytest.mark.parametrize(
    ("rules", "arguments", "found"),
    [
        pytest.param("", ["cluster", "list"], "commands", id="none by default"),
        pytest.param(
            "commands: read", ["cluster", "delete", "x"], "only look", id="only those that look"
        ),
        pytest.param("commands: all", ["certs", "list"], "only `fedpilot cluster`", id="no other"),
        pytest.param(
            "commands: all", ["cluster", "list", "--address=x:1"], "leave out", id="no other Ray"
        ),
        pytest.param(
            "commands: all", ["cluster", "list"], "private", id="no Ray that could be asked"
        ),
    ],
)
def test_commands_are_refused(tmp_path: Path, rules: str, arguments: list[str], found: str) -> None:
    async def play(lab: Lab) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text(rules or "{}")
        async with running(lab.agent(policy=policy)):
            session = await lab.mediator.next_session()
            order = Payload(kind="command", header={"arguments": arguments})
            await session.order("", "command/1", "command", order, lab.mediator.store)
            answer = await session.wait_for("answer", key="command/1")
            assert found in answer.failure.message

    played(tmp_path, play)


def test_a_command_runs_beside_the_agent(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text("commands: read")
        async with running(lab.agent(policy=policy, watch=SetRay())):
            session = await lab.mediator.next_session()
            order = Payload(kind="command", header={"arguments": ["cluster", "list", "--help"]})
            await session.order("", "command/1", "command", order, lab.mediator.store)
            answer = await session.wait_for("answer", key="command/1")
            outcome = json.loads(answer.done.header_json)
            assert outcome["exit_code"] == 0
            assert "Usage" in outcome["out"]

    played(tmp_path, play)


# -- what it is -----------------------------------------------------------------------------------


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
