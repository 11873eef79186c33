"""An agent between a scripted mediator and puppets for runners, and the orders that it gets."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import site_agents
from fake_mediator import Conversation, FakeMediator, fake_mediator
from fedpilot.mediator.agent.agent import SiteAgent
from fedpilot.mediator.agent.home import SiteHome
from fedpilot.mediator.agent.runner.process import RunnerProcess
from fedpilot.mediator.core.restarts import RestartSettings
from fedpilot.mediator.federation.site import GangRequest
from fedpilot.mediator.wire.failures import error_of
from fedpilot.mediator.workload import Payload
from site_agents import PARIS, QUICK

RUN = "run-1"
GANG = Payload(
    kind="gang", header=GangRequest(name="g", resources={"CPU": 1.0}, at_most=2).to_json()
)
MODEL = {"w": np.arange(50_000, dtype=np.float32)}

HASTY = replace(QUICK, restarts=RestartSettings(first_pause_s=0.01, longest_pause_s=0.02))
"""Starts the next runner at once."""


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


def process(lab: Lab) -> subprocess.Popen[str]:
    """An agent in a process of its own."""
    return subprocess.Popen(
        [sys.executable, site_agents.__file__, str(lab.home.folder), lab.mediator.address],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )


async def until(true: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    """Poll until something is true."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.02)


def work(kind: str, **tensors: Any) -> Payload:
    """An order for the puppet."""
    return Payload(kind=kind, header={"round": 3}, tensors=tensors)


async def killed_at_work(lab: Lab, session: Conversation, number: int) -> Exception:
    """Have the run's runner be started, and be killed by an order; the answer."""
    await lab.prepared(session)
    await session.order(RUN, f"work/{number}", "work", work("killed"), lab.mediator.store)
    answer = await session.wait_for("answer", key=f"work/{number}")
    return error_of(PARIS, answer.failure)
