"""Whose a run's results are, and that whoever reads them is in the audit log."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from fedpilot.mediator.core.rules.results import event_without_results
from fedpilot.mediator.core.rules.roles import Role, reads_results
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.messages import PROTOCOL
from fedpilot.mediator.wire.rpc import Stub
from mediators import Here, mediating

RUN = pb.RunRequest(run="run")


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 120))


async def submit(user: Stub, *, shared: bool = False, fails: bool = False) -> None:
    config = {"orders": [], "then": "fail" if fails else "finish"}
    await user.submit(
        pb.SubmitRequest(
            protocol=PROTOCOL,
            run="run",
            config_yaml=json.dumps(config),
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


def test_results_are_their_owners_and_admins(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await made(here)
            async with here.user("otto", Role.OPERATOR) as otto:
                for way in WAYS:
                    assert await read(here.admin, way), way
                    assert await read(otto, way), way
            for name, role in (("olga", Role.OPERATOR), ("vera", Role.VIEWER)):
                async with here.user(name, role) as other:
                    for way in WAYS:
                        await is_refused(other, way, f"{name} ({role})")

    run(test())


async def is_refused(user: Stub, way: str, found: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read(user, way)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED, way
    assert caught.value.details() == (
        "run run belongs to otto and was submitted without --share: only its owner "
        f"and admins may read its results; found {found}"
    )


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


async def told(user: Stub, name: str) -> dict[str, Any]:
    """The one event of the federation that has this name, as somebody reads it."""
    request = pb.FollowRequest(run="", after=0, follow=False)
    found = [json.loads(each.event_json) async for each in user.follow_events(request)]
    (one,) = [each for each in found if each["event"] == name]
    return one


@pytest.mark.parametrize(
    ("fails", "shared"),
    [
        pytest.param(False, False, id="finished"),
        pytest.param(True, False, id="failed"),
        pytest.param(False, True, id="shared", marks=pytest.mark.soak),
    ],
)
def test_the_end_of_a_run_is_told_to_all_and_its_results_to_those_who_may_read_them(
    fails: bool, shared: bool, tmp_path: Path
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            async with here.user("otto", Role.OPERATOR) as otto:
                await submit(otto, shared=shared, fails=fails)
                await here.ended("run")
                mine = await told(otto, "run_failed" if fails else "run_finished")
                (shown,) = map(json.loads, (await otto.list_runs(pb.ListRunsRequest())).run_json)
            assert mine == await told(here.admin, mine["event"])
            assert (mine["run"], mine["owner"]) == ("run", "otto")
            assert mine["reason"] if fails else mine["digest"] == "d" * 64
            async with here.user("vera", Role.VIEWER) as vera:
                seen = await told(vera, mine["event"])
                (listed,) = map(json.loads, (await vera.list_runs(pb.ListRunsRequest())).run_json)
            hidden = {} if shared else {"reason": "", "digest": ""}
            assert seen == {**mine, **hidden}
            assert listed["status"] == shown["status"]
            assert listed["reason"] == ("" if fails else shown["reason"])

    run(test())


@pytest.mark.parametrize(
    ("event", "seen"),
    [
        pytest.param(
            {"event": "run_finished", "run": "r", "reason": "it stopped early", "digest": "d"},
            {"event": "run_finished", "run": "r", "reason": "", "digest": ""},
            id="that of an older mediator, which says no owner",
        ),
        pytest.param(
            {"event": "run_stopped", "run": "r", "owner": "o", "reason": "it was stopped"},
            {"event": "run_stopped", "run": "r", "owner": "o", "reason": "it was stopped"},
            id="one that somebody stopped",
        ),
        pytest.param(
            {"event": "site_lost", "site": "oslo", "reason": "silent", "digest": "d"},
            {"event": "site_lost", "site": "oslo", "reason": "silent", "digest": "d"},
            id="one that is about no run",
        ),
    ],
)
def test_what_others_see_of_an_event(event: dict[str, Any], seen: dict[str, Any]) -> None:
    assert event_without_results(event) == seen


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
            refused = [
                (act, "its results" in outcome) for who, act, outcome in found if who == "vera"
            ]
            assert sorted(refused) == [
                ("follow_run", True),
                ("read_file", True),
                ("run_log", True),
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
