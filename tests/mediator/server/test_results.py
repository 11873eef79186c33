"""Whose a run's results are, and that whoever reads them is in the audit log."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from fedpilot.mediator.core.roles import Role, reads_results
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.rpc import Stub
from fedpilot.mediator.wire import PROTOCOL
from mediators import Here, mediating

RUN = pb.RunRequest(run="run")


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 120))


async def submit(user: Stub, *, shared: bool = False) -> None:
    await user.submit(
        pb.SubmitRequest(
            protocol=PROTOCOL,
            run="run",
            config_yaml=json.dumps({"orders": []}),
            name="n",
            shared=shared,
        )
    )


async def read(user: Stub, way: str) -> int:
    """How much somebody got of a run in one way."""
    match way:
        case "files":
            return len((await user.list_files(RUN)).files)
        case "file":
            request = pb.ReadFileRequest(run="run", path="config.yaml")
            return len([each async for each in user.read_file(request)])
        case "log":
            return len([each async for each in user.run_log(pb.LogRequest(run="run"))])
    return len([each async for each in user.follow_run(pb.FollowRequest(run="run"))])


WAYS = ("files", "file", "log", "events")


async def made(here: Here, *, shared: bool = False) -> None:
    """A run of otto's that has ended, with something in its log."""
    async with here.user("otto", Role.OPERATOR) as otto:
        await submit(otto, shared=shared)
    await here.ended("run")
    with (here.folder / "runs" / "run" / "coordinator.log").open("a") as log:
        log.write("a line\n")


async def acts(here: Here) -> list[tuple[str, str, str]]:
    """Who read what, and how that ended, as the audit log has it."""
    reply = await here.admin.list_audit(pb.ListAuditRequest())
    found = [json.loads(each) for each in reply.entry_json]
    wanted = ("follow_run", "run_log", "read_file")
    return [(each["who"], each["act"], each["outcome"]) for each in found if each["act"] in wanted]


@pytest.mark.parametrize("way", WAYS)
def test_results_are_their_owners_and_admins(way: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await made(here)
            assert await read(here.admin, way)
            async with here.user("otto", Role.OPERATOR) as otto:
                assert await read(otto, way)
            for name, role in (("olga", Role.OPERATOR), ("vera", Role.VIEWER)):
                async with here.user(name, role) as other:
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await read(other, way)
                    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
                    assert caught.value.details() == (
                        "the results of run run are read by otto, whose run it is, and by admins: "
                        f"it was submitted without --share; found {name} ({role})"
                    )

    run(test())


def test_others_see_how_a_run_stands_and_not_what_came_of_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await made(here)
            async with here.user("vera", Role.VIEWER) as vera:
                shown = json.loads((await vera.show_run(RUN)).run_json)
                (listed,) = map(json.loads, (await vera.list_runs(pb.ListRunsRequest())).run_json)
            for found in (shown, listed):
                assert (found["status"], found["owner"]) == ("finished", "otto")
                assert (found["digest"], found["accuracy"], found["loss"]) == ("", None, None)
                assert "manifest" not in found
            assert (await here.run("run"))["digest"] == "d" * 64

    run(test())


def test_whoever_may_read_reads_a_shared_run(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await made(here, shared=True)
            async with here.user("vera", Role.VIEWER) as vera:
                for way in WAYS:
                    assert await read(vera, way)
                shown = json.loads((await vera.show_run(RUN)).run_json)
                assert (shown["shared"], shown["digest"]) == (True, "d" * 64)

    run(test())


def test_reading_results_is_in_the_audit_log_and_so_is_what_was_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await made(here)
            async with here.user("otto", Role.OPERATOR) as otto:
                for _ in range(3):
                    for way in WAYS:
                        await read(otto, way)
            async with here.user("vera", Role.VIEWER) as vera:
                for way in WAYS[1:]:
                    with pytest.raises(grpc.aio.AioRpcError):
                        await read(vera, way)
            found = await acts(here)
            mine = [(act, outcome) for who, act, outcome in found if who == "otto"]
            assert sorted(mine) == [
                ("follow_run", "done"),
                ("read_file", "done"),
                ("read_file", "done"),
                ("read_file", "done"),
                ("run_log", "done"),
            ], "a stream that is asked for again is one reading"
            refused = [(act, outcome[:11]) for who, act, outcome in found if who == "vera"]
            assert sorted(refused) == [
                ("follow_run", "the results"),
                ("read_file", "the results"),
                ("run_log", "the results"),
            ]

    run(test())


@pytest.mark.parametrize(
    ("name", "role", "shared", "reads"),
    [
        pytest.param("otto", Role.OPERATOR, False, True, id="its owner"),
        pytest.param("otto", Role.VIEWER, False, True, id="its owner, with a lesser certificate"),
        pytest.param("ada", Role.ADMIN, False, True, id="an admin"),
        pytest.param("olga", Role.OPERATOR, False, False, id="another operator"),
        pytest.param("vera", Role.VIEWER, False, False, id="a viewer"),
        pytest.param("vera", Role.VIEWER, True, True, id="a viewer, of a shared run"),
    ],
)
def test_who_reads_what(name: str, role: Role, shared: bool, reads: bool) -> None:
    assert reads_results(name, role, "otto", shared=shared) is reads
