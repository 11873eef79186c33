"""Runs that have ended are removed by who owns them, by admins, and by the mediator's retention."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import grpc

from fedpilot.mediator.core.storage.retention import DAY_S, Retention
from fedpilot.mediator.identity import Role
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server import Mediator
from fedpilot.mediator.server.runs.retention import Retaining
from fedpilot.mediator.wire.rpc import USER, Stub
from mediators import Here, channel_to, eventually, mediating, reaching, settings_of

Code = grpc.StatusCode


async def remove(here: Here, run: str, name: str = "admin", role: Role = Role.ADMIN) -> Code:
    """The code that somebody gets who removes a run."""
    async with channel_to(here.address, here.keys(name, role)) as channel:
        try:
            await Stub(channel, USER).remove_run(pb.RunRequest(run=run))
        except grpc.aio.AioRpcError as error:
            return error.code()
    return Code.OK


async def acts(here: Here) -> list[Any]:
    reply = await here.admin.list_audit(pb.ListAuditRequest())
    return [json.loads(each) for each in reply.entry_json]


def test_a_run_that_has_ended_is_removed_with_all_that_it_left(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m", end_s=0.2) as here:
            await here.submit("run", then="wait")
            await eventually(lambda: here.seen("run"))
            assert await remove(here, "run") is Code.FAILED_PRECONDITION
            await here.admin.stop_run(pb.RunRequest(run="run"))
            await here.ended("run")
            await eventually_removed(here, "run")
            assert await remove(here, "run") is Code.NOT_FOUND
            assert list((here.folder / "runs").iterdir()) == []
            (told,) = [each for each in await here.events() if each["event"] == "run_removed"]
            assert (told["run"], told["who"]) == ("run", "admin")
            await here.submit("run", then="wait")  # its name is free again
            await here.admin.stop_run(pb.RunRequest(run="run"))
            await here.ended("run")

    asyncio.run(test())


async def eventually_removed(here: Here, run: str) -> None:
    """Its supervisor may let go of it only after its end was seen."""
    while (code := await remove(here, run)) is Code.FAILED_PRECONDITION:
        await asyncio.sleep(0.02)
    assert code is Code.OK


def test_a_run_is_removed_by_its_owner_and_by_admins(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="fail")
            await here.ended("run")
            assert await remove(here, "run", "otto", Role.OPERATOR) is Code.PERMISSION_DENIED
            assert await remove(here, "run", "vera", Role.VIEWER) is Code.PERMISSION_DENIED
            await eventually_removed(here, "run")
            audited = [each for each in await acts(here) if each["act"] == "remove_run"]
            assert [each["who"] for each in audited][:2] == ["otto", "vera"]
            assert audited[-1]["outcome"] == "done"

    asyncio.run(test())


def test_retention_removes_what_is_kept_no_longer(tmp_path: Path) -> None:
    async def test() -> None:
        folder = tmp_path / "m"
        async with (
            Mediator(settings_of(folder)) as mediator,
            reaching(folder, mediator.ready.address, mediator.ready.join_address) as here,
        ):
            for name in ("first", "second"):
                await here.submit(name)
                assert (await here.ended(name))["status"] == "finished"
            await here.submit("failed", then="fail")
            await here.ended("failed")
            runs = mediator.runs
            await eventually(lambda: not any(map(runs.goes_on, ("first", "second", "failed"))))
            (here.folder / "runs" / ".removed-half.1a2b3c4d" / "journal").mkdir(parents=True)
            database = runs._database

            def retaining(rules: Retention, days_later: float = 0.0) -> Retaining:
                clock = lambda: time.time() + days_later * DAY_S  # noqa: E731
                return Retaining(rules, runs, database, clock)

            await retaining(Retention()).look()
            assert names(here) == ["failed", "first", "second"]
            await retaining(Retention(runs=1)).look()
            assert names(here) == ["failed", "second"]
            await retaining(Retention(days=30), days_later=29).look()
            assert names(here) == ["failed", "second"]
            await retaining(Retention(days=30), days_later=31).look()
            assert names(here) == []
            assert await acts(here) == []  # older than that

    asyncio.run(test())


def names(here: Here) -> list[str]:
    return sorted(path.name for path in (here.folder / "runs").iterdir())


def test_a_mediator_looks_at_its_start(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run")
            await here.ended("run")
        async with mediating(tmp_path / "m", retention=Retention()) as here:
            assert names(here) == ["run"]
        async with mediating(tmp_path / "m", retention=Retention(days=1e-9)) as here:
            await eventually(lambda: names(here) == [])

    asyncio.run(test())
