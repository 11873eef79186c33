"""Sites keep what they hold for a run while it goes on, and give it back after that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.messages import OrderId
from mediators import eventually, mediating
from runs_at_mediators import (
    RUN,
    orders,
    run,
    seen,
)


def test_leases_of_runs_that_go_on_are_renewed(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as agent:
            await here.submit("run", orders("paris"), wait_for=1, then="wait")
            await eventually(lambda: agent.renewed == ["run"])
            await eventually(lambda: seen(here, "answer"))
            await here.admin.stop_run(pb.RunRequest(run="run"))
            await eventually(lambda: agent.renewed == [])
            await eventually(lambda: OrderId(RUN, "release") in agent.worked)

    run(test())


def test_a_site_drains_once_no_run_holds_anything_there(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as agent:
            await here.state("paris", "ready")
            prepare = [{"site": "paris", "key": "prepare", "verb": "prepare"}]
            await here.submit("run", prepare, then="wait")
            await eventually(lambda: seen(here, "answer"))
            asked = pb.ChangeSiteRequest(site="paris", change="drain", timeout_s=0.3)
            left = json.loads((await here.admin.change_site(asked)).site_json)
            assert (left["state"], left["runs"]) == ("draining", ["run"])
            await here.admin.stop_run(pb.RunRequest(run="run"))
            await here.state("paris", "cordoned")
            assert agent.held == []

    run(test())


@pytest.mark.parametrize("how", ["silent", pytest.param("gone", marks=pytest.mark.soak)])
def test_a_site_that_was_away_when_its_run_ended_gives_back_what_it_holds(
    tmp_path: Path, how: str
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as agent:
            await here.submit("run", orders("paris"), wait_for=1, then="wait")
            await eventually(lambda: seen(here, "answer"))
            agent.silent = True
            if how == "gone":
                await agent.stop()
            await here.state("paris", "lost")
            await here.admin.stop_run(pb.RunRequest(run="run"))
            await here.ended("run")
            assert OrderId(RUN, "release") not in agent.worked
            agent.silent = False
            if how == "gone":
                await agent.start()
            await eventually(lambda: OrderId(RUN, "release") in agent.worked)
            await eventually(lambda: agent.held == [])
            assert (await here.sites())["paris"]["runs"] == []

    run(test())


def test_a_release_is_asked_again_until_the_site_has_confirmed_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as agent:
            await here.submit("run", orders("paris"), wait_for=1, then="wait")
            await eventually(lambda: seen(here, "answer"))
            await agent.stop()  # the mediator believes that it can still be reached
            await here.admin.stop_run(pb.RunRequest(run="run"))
            await here.ended("run")
            await agent.start()
            await eventually(lambda: OrderId(RUN, "release") in agent.worked)
            await eventually(lambda: agent.held == [])
            await agent.stop()
            await agent.start()
            await eventually(agent.welcomed.is_set)
            await here.state("paris", "ready")
            assert agent.worked.count(OrderId(RUN, "release")) == 1

    run(test())


def test_a_site_that_was_lost_and_is_not_to_work_again_gives_back_what_it_holds(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as agent:
            await here.submit("run", orders("paris"), wait_for=1, then="wait")
            await eventually(lambda: seen(here, "answer"))
            agent.silent = True
            await here.state("paris", "lost")
            await here.admin.change_site(pb.ChangeSiteRequest(site="paris", change="drain"))
            agent.silent = False
            await here.state("paris", "cordoned")
            assert OrderId(RUN, "release") in agent.worked
            assert (await here.run("run"))["status"] == "running"

    run(test())
