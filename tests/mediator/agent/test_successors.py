"""An agent that ends leaves its runners; its successor adopts them or ends them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil

from agent_labs import MODEL, RUN, Lab, played, process, until, work
from fake_mediator import FakeMediator, fake_mediator
from fedpilot.mediator.agent.runner.process import PROTOCOL, SETTINGS, RayChoice, RunnerProcess
from fedpilot.mediator.agent.scans.ray_watchdog import NOT_LOOKED, Look
from fedpilot.mediator.errors import SiteLost
from fedpilot.mediator.wire.failures import error_of
from fedpilot.mediator.wire.messages import payload_of
from mediators import eventually
from site_agents import PARIS, QUICK, SetRay, running


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

    played(tmp_path, play)


def test_a_successor_ends_what_speaks_another_protocol(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent(), release=False):
            await lab.prepared(await lab.mediator.next_session())
            pid = lab.pid()
        settings = lab.run_folder / SETTINGS
        values = json.loads(settings.read_text())
        del values["protocol"]  # as before protocol 2
        settings.write_text(json.dumps(values))
        async with running(lab.agent()):
            await lab.mediator.next_session()
            assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"
            reason = f"it speaks protocol 1, this agent {PROTOCOL}"
            assert ("runner_ended", {"run": RUN, "reason": reason}) in lab.said

    played(tmp_path, play)


def has_ended(pid: int) -> bool:
    """Whether a process that was killed is gone, or waits to be reaped."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_successor_ends_what_it_cannot_drive(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent(), release=False):
            await lab.prepared(await lab.mediator.next_session())
            pid = lab.pid()
        (lab.run_folder / SETTINGS).write_text("")
        async with running(lab.agent()):
            session = await lab.mediator.next_session()
            await eventually(lambda: has_ended(pid), "the runner's end", 60)
            await lab.prepared(session)  # the run gets another runner

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
