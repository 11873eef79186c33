"""A runner is told where the site's policy is, so that it asks it by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fedpilot.mediator import SiteLost
from fedpilot.mediator.agent.home import SiteHome
from fedpilot.mediator.agent.orders.runners import Runners
from fedpilot.mediator.agent.runner.process import RayChoice, RunnerProcess, RunnerSettings
from site_agents import PARIS, QUICK


def test_a_runner_is_started_with_the_sites_policy(tmp_path: Path) -> None:
    seen: list[RunnerSettings] = []

    def start(folder: Path, settings: RunnerSettings) -> RunnerProcess:
        seen.append(settings)
        raise SiteLost("paris", "it was only looked at")

    async def ensure() -> None:
        runners = Runners(
            SiteHome(tmp_path),
            PARIS,
            QUICK,
            ray=RayChoice,
            data={"scans": {}},
            policy=tmp_path / "policy.yaml",
            happened=lambda *_: None,
            ended=lambda *_: None,
            at_work=lambda _: "",
            clock=lambda: 0.0,
            start=start,
        )
        await runners.ensure("run-1")  # type: ignore[arg-type]

    with pytest.raises(SiteLost, match="only looked at"):
        asyncio.run(ensure())
    (settings,) = seen
    assert settings.asks_policy
    assert settings.policy == tmp_path / "policy.yaml"
    assert settings.data == {"scans": {}}
