"""A run has one runner at a site, which starts again a few times when it dies."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import fake_runner
from agent_labs import GANG, HASTY, RUN, Lab, killed_at_work, played, until, work
from fedpilot.mediator.agent.runner.process import RunnerProcess, RunnerSettings
from fedpilot.mediator.core.restarts import RestartSettings
from fedpilot.mediator.errors import RunnerDied, RunnersSpent, SiteLost
from fedpilot.mediator.wire.failures import error_of
from site_agents import PARIS, QUICK, running


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


def test_a_crash_that_repeats_at_the_same_place_does_not_loop(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        twice = replace(HASTY, restarts=replace(HASTY.restarts, most_at_a_place=2))
        agent = lab.agent(settings=twice)
        async with running(agent):
            session = await lab.mediator.next_session()
            error = await killed_at_work(lab, session, 1)
            assert type(error) is RunnerDied
            assert "killed by SIGKILL" in error.reason
            error = await killed_at_work(lab, session, 2)
            assert isinstance(error, RunnersSpent)
            assert "2 times at work of round 3" in error.reason
            assert "killed by SIGKILL" in error.reason
            await session.order(RUN, "prepare", "prepare", GANG, lab.mediator.store)
            refused = await session.wait_for("answer", key="prepare")
            assert isinstance(error_of(PARIS, refused.failure), RunnersSpent)
            assert not lab.runs_here()
            await session.take(RUN, "prepare")
            lab.mediator.runs = []  # it has failed, and is resumed later
            await until(lambda: not agent._runners.deaths(RUN), "the deaths are forgotten")
            lab.mediator.runs = [RUN]
            await lab.prepared(session)

    played(tmp_path, play)


@pytest.mark.soak
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
