"""A run's orders reach their sites once, and so do the answers, whatever breaks in between."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fedpilot.mediator import Payload
from fedpilot.mediator.proto import federation_pb2 as pb
from mediators import eventually, mediating
from runs_at_mediators import (
    ROUND,
    blobs,
    doubled,
    orders,
    quick,
    run,
    seen,
)


def test_orders_reach_their_sites_and_answers_come_back_with_their_blobs(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            mediating(tmp_path / "m") as here,
            here.agent("paris", work=doubled) as paris,
            here.agent("rome", work=doubled) as rome,
        ):
            submitted = await here.submit("run", orders("paris", "rome"), wait_for=2)
            assert submitted["status"] in ("submitted", "running")
            found = await here.ended("run")
            assert (found["status"], found["digest"]) == ("finished", "d" * 64)
            answers = seen(here, "answer")
            assert [(each["site"], each["sum"]) for each in answers] == [
                ("paris", 999_000.0),
                ("rome", 999_000.0),
            ]
            for agent in (paris, rome):
                await eventually(lambda agent=agent: ROUND in agent.taken)
                assert agent.worked.count(ROUND) == 1
            (traffic,) = seen(here, "traffic")
            rows = {(row[1], row[2]): row[4] for row in traffic["rows"]}
            for site in ("paris", "rome"):
                assert 4_000 < rows[site, "to_site"] < 4_600
            assert 4_000 < max(rows["paris", "from_site"], rows["rome", "from_site"]) < 4_600
            await eventually(lambda: not blobs(here), f"{blobs(here)} are removed", 60)
            events = [each["event"] for each in await here.events("run")]
            assert events == ["run_started", "run_finished"]

    run(test())


def test_a_site_that_is_not_there_fails_its_orders_as_lost(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", orders("oslo"))
            assert (await here.ended("run"))["status"] == "finished"
            (failure,) = seen(here, "failure")
            assert failure["kind"] == "SiteLost"
            assert "there is no such site" in failure["text"]

    run(test())


def test_a_lost_sites_orders_fail_and_its_late_answer_is_dropped(tmp_path: Path) -> None:
    async def test() -> None:
        # A mediator that stands still for a third of this forgives the silence, over and over.
        health = quick(silent_after_s=3.0)
        async with mediating(tmp_path / "m", health=health) as here:
            agent = here.agent("paris", work=doubled, hold_answers=True)
            async with agent:
                await here.submit("run", orders("paris"), wait_for=1, then="wait")
                await eventually(lambda: ROUND in agent.worked)
                agent.silent = True
                await eventually(lambda: seen(here, "failure"))
                assert seen(here, "failure")[0]["kind"] == "SiteLost"
                agent.silent = False
                agent.release_answers()
                await eventually(lambda: ROUND in agent.taken, "the late answer is taken")
                assert not seen(here, "answer")

    run(test())


def test_orders_for_a_suspect_site_wait(tmp_path: Path) -> None:
    async def test() -> None:
        health = {"silent_after_s": 0.5, "grace_s": 30.0}
        async with (
            mediating(tmp_path / "m", health=quick(**health)) as here,
            here.agent("paris") as agent,
        ):
            await here.state("paris", "ready")
            agent.silent = True
            await here.state("paris", "suspect")
            await here.submit("run", orders("paris"))
            await eventually(lambda: seen(here, "attached"))
            await asyncio.sleep(0.3)  # long enough for an order that would not wait
            assert agent.worked == []
            agent.silent = False
            assert (await here.ended("run"))["status"] == "finished"
            assert agent.worked.count(ROUND) == 1

    run(test())


def test_after_a_broken_link_held_orders_are_not_sent_again(tmp_path: Path) -> None:
    async def test() -> None:
        health = quick(grace_s=30.0)
        async with (
            mediating(tmp_path / "m", health=health) as here,
            here.agent("paris", work=doubled, hold_answers=True) as agent,
        ):
            await here.submit("run", orders("paris"), wait_for=1)
            await eventually(lambda: ROUND in agent.worked)
            await agent.stop()
            agent.release_answers()
            await here.state("paris", "suspect")
            await agent.start()
            assert (await here.ended("run"))["status"] == "finished"
            assert agent.worked.count(ROUND) == 1
            assert len(seen(here, "answer")) == 1

    run(test())


def test_what_happens_at_a_site_is_told_to_the_run_that_is_there(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as agent:
            await here.submit("run", orders("paris"), wait_for=1, then="wait")
            await eventually(lambda: seen(here, "answer"))
            agent.say("run", "worker_ready", {"worker": 1})
            agent.say("another", "worker_ready", {"worker": 2})
            await eventually(lambda: seen(here, "happened"))
            assert [each["header"] for each in seen(here, "happened")] == [{"worker": 1}]

    run(test())


def test_sites_are_told_whose_run_it_is_by_the_mediator(tmp_path: Path) -> None:
    told: list[Any] = []

    async def listens(order: pb.Order, payload: Payload) -> Payload:
        if order.verb == "check":
            told.append(payload.header)
        return Payload(kind="done")

    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris", work=listens):
            check = [{"site": "paris", "key": "check", "verb": "check", "user": "somebody else"}]
            await here.submit("run", check, wait_for=1)
            await here.ended("run")
            assert [each["user"] for each in told] == [{"name": "admin", "role": "admin"}]

    run(test())


def test_many_sites_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        names = [f"site-{number:02}" for number in range(12)]
        async with mediating(tmp_path / "m", health=quick(silent_after_s=5.0)) as here:
            agents = [here.agent(name, work=doubled) for name in names]
            await asyncio.gather(*(agent.start() for agent in agents))
            await here.submit("run", orders(*names), wait_for=len(names))
            assert (await here.ended("run"))["status"] == "finished"
            assert len(seen(here, "answer")) == len(names)
            assert all(agent.worked.count(ROUND) == 1 for agent in agents)
            await asyncio.gather(*(agent.close() for agent in agents))

    run(test())
