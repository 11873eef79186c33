"""A mediator whose database goes away for a while: nothing ends by that, and nothing is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from fake_agents import promise_and_echo
from fedpilot.mediator import Payload
from fedpilot.mediator.proto import federation_pb2 as pb
from mediators import Here, eventually, mediating
from postgres import Server, database, excused, server

LONG_S = 120


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Server]:
    """One PostgreSQL for this module."""
    if why := excused():
        pytest.skip(why)
    with server() as made:
        yield made


@pytest.fixture
def store(postgresql: Server) -> Iterator[str]:
    """A database of its own on a server that is there before and after."""
    with database(postgresql.url) as url:
        try:
            yield url
        finally:
            postgresql.start_if_stopped()


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, LONG_S))


async def code_of(call: Any) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def written(here: Here, name: str) -> dict[str, Any]:
    """A run as the database has it once that is there again and the run has ended."""

    async def status() -> dict[str, Any]:
        try:
            return dict(await here.run(name))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return {"status": "unknown"}

    found: dict[str, Any] = {}

    async def ended() -> bool:
        nonlocal found
        found = await status()
        return found["status"] in ("finished", "failed", "stopped")

    async with asyncio.timeout(60):
        while not await ended():
            await asyncio.sleep(0.1)
    return found


def orders(*keys: str) -> list[dict[str, Any]]:
    return [{"site": "paris", "key": key} for key in keys]


def test_a_run_that_ends_while_the_database_is_away_is_known_as_finished(
    tmp_path: Path, store: str, postgresql: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        let_go = asyncio.Event()

        async def work(order: pb.Order, payload: Payload) -> Payload:
            await let_go.wait()
            return await promise_and_echo(order, payload)

        async with (
            mediating(tmp_path / "m", store=store) as here,
            here.agent("paris", work=work) as paris,
        ):
            await here.submit("run", orders("round/1"), wait_for=1, events=20)
            await eventually(lambda: paris.worked)
            postgresql.stop()
            assert await code_of(here.run("run")) is grpc.StatusCode.UNAVAILABLE
            assert await code_of(here.submit("other")) is grpc.StatusCode.UNAVAILABLE
            let_go.set()
            await eventually(lambda: any(each["what"] == "over" for each in here.seen("run")))
            assert {each["pid"] for each in here.seen("run")} == {here.seen("run")[0]["pid"]}
            postgresql.start()
            found = await written(here, "run")
            assert (found["status"], found["restarts"]) == ("finished", 0)
            assert found["digest"] == "d" * 64
            events = [each["event"] for each in await here.events("run")]
            assert events == ["run_started", *["told"] * 20, "run_finished"]

            async def told(name: str) -> int:
                return [each["event"] for each in await here.events()].count(name)

            async with asyncio.timeout(60):
                while not await told("store_back"):
                    await asyncio.sleep(0.1)
            assert await told("run_finished") == 1

    with caplog.at_level(logging.INFO):
        run(test())
    away = [each for each in caplog.records if "database is away" in each.getMessage()]
    assert len([each for each in away if each.levelno >= logging.ERROR]) == 1


def test_a_run_goes_on_while_the_database_is_away_and_can_be_stopped_and_resumed_after(
    tmp_path: Path, store: str, postgresql: Server
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m", store=store) as here:
            await here.submit("run", then="wait")
            await eventually(lambda: here.seen("run"))
            postgresql.stop()
            stop = pb.RunRequest(run="run")
            assert await code_of(here.admin.stop_run(stop)) is grpc.StatusCode.UNAVAILABLE
            await asyncio.sleep(1.0)
            postgresql.start()
            async with asyncio.timeout(60):
                while await code_of(here.admin.stop_run(stop)) is not grpc.StatusCode.OK:
                    await asyncio.sleep(0.1)
            assert (await written(here, "run"))["status"] == "stopped"
            assert len({each["pid"] for each in here.seen("run")}) == 1
            await here.admin.resume_run(stop)
            await eventually(lambda: len({each["pid"] for each in here.seen("run")}) == 2)

    run(test())


def test_what_an_admin_does_while_the_database_is_away_is_not_told_as_done(
    tmp_path: Path, store: str, postgresql: Server
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m", store=store) as here, here.agent("paris"):
            await here.state("paris", "ready")
            postgresql.stop()
            asked = pb.RevokeRequest(which="nobody-of-that-name")
            assert await code_of(here.admin.revoke_certificate(asked)) in (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.NOT_FOUND,
            )
            cordon = pb.ChangeSiteRequest(site="paris", change="cordon")
            assert await code_of(here.admin.change_site(cordon)) is grpc.StatusCode.UNAVAILABLE
            assert "paris" in await here.sites(), "what is known in memory is still told"
            postgresql.start()

            async def acts() -> list[str]:
                async with asyncio.timeout(60):
                    while True:
                        try:
                            reply = await here.admin.list_audit(pb.ListAuditRequest())
                            return list(reply.entry_json)
                        except grpc.aio.AioRpcError:
                            await asyncio.sleep(0.1)

            told = await acts()
            assert any("nobody-of-that-name" in each for each in told), told

    run(test())
