"""An agent at a real Ray: its head is killed and comes back, and a runner that hung is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fake_mediator import Conversation, FakeMediator, fake_mediator
from fedpilot.fabric import ClusterUnreachable
from fedpilot.mediator.agent.home import SiteHome
from fedpilot.mediator.agent.runner.process import RayChoice, RunnerProcess
from fedpilot.mediator.agent.scans.ray_watchdog import Watchdog
from fedpilot.mediator.federation.site import GangRequest
from fedpilot.mediator.workload import Payload
from real_ray import ray_head
from site_agents import PARIS, QUICK, agent, running

pytestmark = [pytest.mark.ray, pytest.mark.soak]

RUN = "run-1"


class Head:
    """A Ray head that comes and goes."""

    def __init__(self) -> None:
        self.address = ""

    def resolve(self) -> str:
        if not self.address:
            raise ClusterUnreachable("auto", "it is not there")
        return self.address

    @asynccontextmanager
    async def there(self) -> AsyncIterator[None]:
        head = ray_head(2)
        self.address = await asyncio.to_thread(head.__enter__)
        try:
            yield
        finally:
            await asyncio.to_thread(head.__exit__, None, None, None)


async def prepared(session: Conversation, mediator: FakeMediator) -> None:
    request = GangRequest(name="gang", resources={"CPU": 1.0}, at_most=2, timeout_s=30.0)
    gang = Payload(kind="gang", header=request.to_json())
    await session.order(RUN, "prepare", "prepare", gang, mediator.store)
    answer = await session.wait_for("answer", within_s=60, key="prepare")
    assert (answer.done.kind, answer.done.header_json) == ("promised", '{"vnodes":2}')
    await session.take(RUN, "prepare")


async def heartbeat(session: Conversation, *, troubled: bool) -> str:
    deadline = time.monotonic() + 30
    while True:
        beat = await session.wait_for("heartbeat")
        if bool(beat.trouble) is troubled and (troubled or beat.capacity.total):
            return str(beat.trouble)
        assert time.monotonic() < deadline, beat


@pytest.mark.timeout(150)
def test_a_head_that_dies_takes_its_runners_along_and_a_new_one_is_worked_with(
    tmp_path: Path,
) -> None:
    async def play(mediator: FakeMediator) -> None:
        mediator.runs = [RUN]
        head, home = Head(), SiteHome(tmp_path / "paris")
        settings = replace(QUICK, watch_s=0.5, health_s=2.0)
        environment = {"RAY_AUTH_MODE": "disabled"}
        with home.locked():
            dog = Watchdog(head.resolve, environment, settings, time.monotonic)
            made = agent(
                home,
                mediator.address,
                mediator.credentials(PARIS),
                watch=dog,
                settings=settings,
                ray=RayChoice(address="auto", auth_mode="disabled"),
                start=RunnerProcess.start,
            )
            async with head.there():
                async with running(made):
                    session = await mediator.next_session()
                    await heartbeat(session, troubled=False)
                    await prepared(session, mediator)
                    runner = RunnerProcess.find(home.run_folder(RUN))
                    assert runner is not None
                    pid = runner.pid
                    assert pid is not None
                    await asyncio.to_thread(_kill, head.address)
                    assert "does not answer" in await heartbeat(session, troubled=True)
                    deadline = time.monotonic() + 10
                    while psutil.pid_exists(pid):
                        assert time.monotonic() < deadline, "the runner hangs"
                        await asyncio.sleep(0.05)
                    async with head.there():
                        await heartbeat(session, troubled=False)
                        await prepared(session, mediator)
                assert RunnerProcess.find(home.run_folder(RUN)) is None

    async def whole() -> None:
        async with fake_mediator(tmp_path / "mediator") as mediator, asyncio.timeout(140):
            await play(mediator)

    asyncio.run(whole())


def _kill(address: str) -> None:
    """Kill the control plane, as a machine that loses its power does."""
    port = int(address.rpartition(":")[2])
    for process in psutil.process_iter(["name", "cmdline"]):
        if f"--gcs_server_port={port}" in (process.info["cmdline"] or ()):
            process.kill()
