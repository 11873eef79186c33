"""Coordinators that are killed are started again, by this mediator or the next one."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from fedpilot.mediator.core.restarts import RestartSettings
from mediators import eventually, mediating, process, reaching
from runs_at_mediators import (
    ROUND,
    alive,
    doubled,
    orders,
    run,
    seen,
)


def test_a_killed_coordinator_is_started_again_and_gets_the_answer_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            mediating(tmp_path / "m") as here,
            here.agent("paris", work=doubled, hold_answers=True) as agent,
        ):
            await here.submit("run", orders("paris"), wait_for=1)
            await eventually(lambda: ROUND in agent.worked)
            first = seen(here, "attached")[0]["pid"]
            os.kill(first, signal.SIGKILL)
            agent.release_answers()  # while nobody is attached
            found = await here.ended("run")
            assert (found["status"], found["restarts"]) == ("finished", 1)
            assert agent.worked.count(ROUND) == 1
            (answer,) = seen(here, "answer")
            assert answer["pid"] != first
            await eventually(lambda: ROUND in agent.taken)
            killed = [e for e in await here.events() if e["event"] == "coordinator_killed"]
            assert [each["exit_code"] for each in killed] == [-signal.SIGKILL]

    run(test())


def test_a_coordinator_that_is_killed_too_often_fails_its_run(tmp_path: Path) -> None:
    async def test() -> None:
        restarts = RestartSettings(most=2, first_pause_s=0.1, longest_pause_s=0.2)
        async with mediating(tmp_path / "m", restarts=restarts) as here:
            await here.submit("run", then="wait")
            for number in range(3):
                await eventually(lambda number=number: len(seen(here, "attached")) > number)
                os.kill(seen(here, "attached")[-1]["pid"], signal.SIGKILL)
            found = await here.ended("run")
            assert (found["status"], found["restarts"]) == ("failed", 2)
            assert "killed 3 times" in found["reason"]

    run(test())


def test_a_coordinator_that_fails_by_itself_is_not_started_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="fail")
            found = await here.ended("run")
            assert (found["status"], found["restarts"]) == ("failed", 0)
            assert "exit code 1" in found["reason"]
            assert len(seen(here, "attached")) == 1

    run(test())


def test_nothing_watches_a_run_that_has_ended(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("first", then="fail")
            await here.ended("first")
            before = len(asyncio.all_tasks())
            await here.submit("run", then="fail")
            await here.ended("run")
            await eventually(lambda: len(asyncio.all_tasks()) <= before)

    run(test())


def test_a_killed_mediator_loses_nothing_and_has_nothing_done_twice(tmp_path: Path) -> None:
    folder = tmp_path / "m"

    async def test() -> None:
        with process(folder) as (first, (port, join_port)):
            here_then = f"localhost:{port}"
            async with reaching(folder, here_then, f"localhost:{join_port}") as here:
                agent = here.agent("paris", work=doubled, hold_answers=True)
                await agent.start()
                await here.submit("run", orders("paris"), wait_for=1)
                await eventually(lambda: ROUND in agent.worked)
                coordinator = seen(here, "attached")[0]["pid"]
                first.send_signal(signal.SIGKILL)
                first.wait()
                await eventually(lambda: not alive(coordinator), "the coordinator ends with it")
        agent.release_answers()
        with process(folder, port, join_port):
            async with reaching(folder, here_then, f"localhost:{join_port}") as here:
                found = await here.ended("run")
                assert found["status"] == "finished"
                assert agent.worked.count(ROUND) == 1
                assert len(seen(here, "answer")) == 1
                assert len(seen(here, "attached")) == 2
                await eventually(lambda: ROUND in agent.taken)
                await agent.close()

    run(test())


def test_a_mediator_that_ends_in_order_goes_on_with_its_runs_at_the_next_start(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="wait")
            await eventually(lambda: seen(here, "attached"))
            coordinator = seen(here, "attached")[0]["pid"]
        assert not alive(coordinator)
        async with mediating(tmp_path / "m") as here:
            await eventually(lambda: len(seen(here, "attached")) == 2)
            assert (await here.run("run"))["status"] == "running"

    run(test())
