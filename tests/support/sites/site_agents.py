"""Agents of sites without Ray, for tests: in the test's event loop, or as processes to be killed.

`python site_agents.py HOME ADDRESS` is such a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_runner
from fedpilot.mediator.agent.agent import SiteAgent, SiteFacts
from fedpilot.mediator.agent.home import SiteHome
from fedpilot.mediator.agent.orders.runners import Start
from fedpilot.mediator.agent.runner.process import RayChoice
from fedpilot.mediator.agent.scans.ray_watchdog import Look, PrivateRay, Watch
from fedpilot.mediator.agent.settings import AgentSettings
from fedpilot.mediator.core.links import LinkSpeed
from fedpilot.mediator.core.storage.disk import Space
from fedpilot.mediator.identity import Credentials
from fedpilot.mediator.wire.blobs.full_disk import space_of
from fedpilot.mediator.wire.messages import Capacity, SiteName

PARIS = SiteName("paris")
QUICK = AgentSettings(
    first_pause_s=0.05,
    silent_s=3.0,
    holding_pause_s=0.3,
    longest_pause_s=0.3,
    orphan_s=30.0,
    runner_end_s=5.0,
    watch_s=0.1,
    health_s=0.5,
)


class SetRay:
    """A Ray whose state the test sets."""

    def __init__(self) -> None:
        total = {"CPU": 4.0}
        self.look = Look(
            capacity=Capacity(total=total, free=total, machines=1), address="127.0.0.1:6379"
        )
        self._changed: Callable[[Look, Look], None] = lambda *_: None

    def trouble(self, reason: str) -> None:
        self.set(replace(self.look, trouble=reason))

    def set(self, look: Look) -> None:
        before, self.look = self.look, look
        self._changed(before, look)

    async def watch(self, changed: Callable[[Look, Look], None]) -> None:
        self._changed = changed
        await asyncio.Event().wait()


def agent(
    home: SiteHome,
    address: str,
    credentials: Credentials,
    *,
    watch: Watch | None = None,
    settings: AgentSettings = QUICK,
    policy: Path | None = None,
    link: LinkSpeed | None = None,
    ray: RayChoice | None = None,
    start: Start = fake_runner.start,
    say: Any = lambda *_, **__: None,
    space: Callable[[Path], Space] = space_of,
) -> SiteAgent:
    """An agent of paris, with puppets for runners unless the test brings others."""
    site = SiteFacts(
        name=PARIS,
        mediator=address,
        ray=ray or RayChoice(),
        environment={"RAY_AUTH_MODE": "disabled"},
        data={},
        data_json="",
        policy=policy,
        version="1.2.3",
        link=link or LinkSpeed(),
    )
    return SiteAgent(
        site,
        home,
        watch or PrivateRay(),
        credentials,
        settings,
        say=say,
        start=start,
        space=space,
    )


@contextlib.asynccontextmanager
async def running(agent: SiteAgent, *, release: bool = True) -> AsyncIterator[asyncio.Task[None]]:
    """An agent that runs meanwhile."""
    task = asyncio.create_task(agent.run(release=release))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def main(folder: Path, address: str) -> None:
    """Be such an agent, printing what happens."""
    home = SiteHome(folder)
    with home.locked():
        credentials = Credentials.read(home.credentials_folder)

        def say(event: str, /, **fields: Any) -> None:
            print(json.dumps({"event": event, **fields}), flush=True)

        async def work() -> None:
            await agent(home, address, credentials, say=say).run()

        asyncio.run(work())


if __name__ == "__main__":
    sys.path.insert(0, os.fspath(Path(__file__).parent))
    main(Path(sys.argv[1]), sys.argv[2])
