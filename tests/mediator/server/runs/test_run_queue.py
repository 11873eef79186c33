"""Runs wait in line for room at their sites, hold nothing meanwhile, and begin when it is there."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedpilot.fabric.spec.queue_file import queue_file_of
from fedpilot.mediator.core.run_queue import RunQueueSettings
from fedpilot.mediator.identity import Role
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.messages import PROTOCOL
from mediators import Here, eventually, mediating, process, reaching, refused
from runs_at_mediators import run

WHOLE = {"vnode": {"CPU": 1.0}, "workers": 4}
"""All that a fake site has."""
BRISK: dict[str, Any] = {"end_s": 0.2}
"""Coordinators that are stopped before they are attached are not waited for."""


def hold(*sites: str) -> list[dict[str, Any]]:
    """The orders of a run that reserves at these sites, and checks its workload there."""
    return [
        {"site": site, "key": verb, "verb": verb} for verb in ("prepare", "check") for site in sites
    ]


async def begin(here: Here, run: str, *sites: str, project: str = "", **facts: Any) -> None:
    """Submit a run that holds these sites until it is stopped."""
    ask = WHOLE | {"count": len(sites), "project": project}
    await here.submit(run, hold(*sites), then="wait", ask=ask, **facts)


async def holds(here: Here, run: str, site: str) -> None:
    """Wait until a site works for this run only."""
    async with asyncio.timeout(60):
        while (await here.sites())[site]["runs"] != [run]:
            await asyncio.sleep(0.05)


async def until(here: Here, run: str, status: str, within_s: float = 60) -> Any:
    async with asyncio.timeout(within_s):
        while (found := await here.run(run))["status"] != status:
            await asyncio.sleep(0.05)
    return found


async def stop(here: Here, *runs: str) -> None:
    for each in runs:
        await here.admin.stop_run(pb.RunRequest(run=each))
        await here.ended(each)


async def places(here: Here) -> list[str]:
    """The runs in line, in order of their places."""
    reply = await here.admin.list_runs(pb.ListRunsRequest())
    found = [json.loads(each) for each in reply.run_json]
    queued = [each for each in found if each["queue"] is not None]
    assert all(each["status"] == "queued" for each in queued)
    return [each["run_id"] for each in sorted(queued, key=lambda each: each["queue"]["place"])]


async def in_line(here: Here, *runs: str) -> None:
    """Wait until the line is this."""
    async with asyncio.timeout(60):
        while (found := await places(here)) != list(runs):
            await asyncio.sleep(0.05)
            assert len(found) < 100


def test_a_run_whose_sites_are_full_waits_and_says_for_whom(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m", **BRISK) as here, here.agent("paris"):
            await here.state("paris", "ready")
            await begin(here, "first", "paris")
            await until(here, "first", "running")
            await begin(here, "second", "paris", priority_class="build")
            found = await until(here, "second", "queued")
            wanted = "1 site with room for 4 vnodes of 1 CPU is needed, none has it"
            assert found["reason"] == f"{wanted}; paris has first of admin"
            assert found["queue"] == {
                "place": 1,
                "of": 1,
                "waits_for": found["reason"],
                "holders": [{"site": "paris", "run": "first", "user": "admin"}],
            }
            assert found["priority_class"] == "build"
            assert found["started_at"] is None
            assert not here.seen("second"), "it has no coordinator"
            await holds(here, "first", "paris")
            (queued,) = [each for each in await here.events() if each["event"] == "run_queued"]
            assert (queued["run"], queued["reason"]) == ("second", found["reason"])
            await stop(here, "first")
            found = await until(here, "second", "running")
            assert (found["queue"], found["reason"]) == (None, "")
            await eventually(lambda: here.seen("second"))
            told = json.loads((here.folder / "runs" / "second" / "turn.json").read_text())
            assert told == {"sites": ["paris"]}
            await stop(here, "second")
            (waiting,) = [e for e in await here.events("second") if e["event"] == "run_waiting"]
            assert waiting["reason"] == queued["reason"]

    run(test())


def test_runs_begin_by_class_then_in_turns_of_users_then_by_age(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m", **BRISK) as here, here.agent("paris"):
            await here.state("paris", "ready")
            await begin(here, "first", "paris")
            await until(here, "first", "running")
            for name in ("second", "third"):
                await begin(here, name, "paris")
            async with here.user("zoe", Role.OPERATOR) as zoe:
                await zoe.submit(submission("hers", "paris"))
            await begin(here, "urgent", "paris", priority_class="inference")
            await in_line(here, "urgent", "hers", "second", "third")
            order = ["first", "urgent", "hers", "second", "third"]
            for name, *rest in (order[at:] for at in range(len(order))):
                await until(here, name, "running")
                await in_line(here, *rest)
                await stop(here, name)

    run(test())


def submission(run: str, *sites: str, **changes: Any) -> pb.SubmitRequest:
    config = {"orders": hold(*sites), "then": "wait"}
    given: dict[str, Any] = {
        "protocol": PROTOCOL,
        "run": run,
        "config_yaml": json.dumps(config),
        "name": "test",
        "ask_json": json.dumps(WHOLE | {"count": max(1, len(sites))}),
        **changes,
    }
    return pb.SubmitRequest(**given)


def test_a_run_that_fits_elsewhere_is_not_held_up(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            mediating(tmp_path / "m", **BRISK) as here,
            here.agent("paris"),
            here.agent("rome"),
        ):
            for site in ("paris", "rome"):
                await here.state(site, "ready")
            await begin(here, "first", "paris")
            await until(here, "first", "running")
            await begin(here, "both", "paris", "rome")
            await begin(here, "small", "rome")
            await until(here, "small", "running")
            await in_line(here, "both")
            await stop(here, "first", "small")
            await until(here, "both", "running")
            await stop(here, "both")

    run(test())


def test_projects_share_the_sites_and_say_who_may_submit_what(tmp_path: Path) -> None:
    projects = [
        {"name": "vision", "quota": {"default": {"CPU": 4}}, "users": ["zoe", "role:viewer"]},
        {"name": "speech", "quota": {"default": {"CPU": 4}}, "classes": ["train", "nightly"]},
    ]
    file = queue_file_of({"projects": projects, "classes": [{"name": "nightly", "priority": 10}]})

    async def test() -> None:
        async with (
            mediating(tmp_path / "m", **BRISK, projects=file) as here,
            here.agent("paris"),
            here.user("zoe", Role.OPERATOR) as zoe,
        ):
            await here.state("paris", "ready")
            for project, class_, said in (
                (
                    "vision",
                    "",
                    "vision takes requests of zoe and role:viewer, not of admin",
                ),
                ("sales", "", "there is no project sales"),
                ("speech", "build", "allows the priority classes train and nightly, not build"),
            ):
                code, why = await refused(
                    here.submit("bad", then="wait", priority_class=class_, ask={"project": project})
                )
                assert code is grpc.StatusCode.FAILED_PRECONDITION
                assert said in why
            await begin(here, "first", "paris", project="speech")
            await until(here, "first", "running")
            await begin(here, "second", "paris", project="speech", priority_class="nightly")
            ask = json.dumps(WHOLE | {"count": 1, "project": "vision"})
            await zoe.submit(submission("hers", "paris", ask_json=ask))
            await in_line(here, "hers", "second")
            assert (await here.run("second"))["project"] == "speech"
            await stop(here, "first")
            await until(here, "hers", "running")
            await stop(here, "hers", "second")

    run(test())


def test_a_user_has_only_so_many_runs_at_work(tmp_path: Path) -> None:
    async def test() -> None:
        limit = RunQueueSettings(runs_per_user=1)
        async with mediating(tmp_path / "m", **BRISK, queue=limit) as here:
            await here.submit("first", then="wait")  # that asks for nothing known
            await here.submit("second", then="wait")
            found = await until(here, "second", "queued")
            assert found["reason"] == "admin has 1 run at work, of at most 1"
            assert found["queue"]["holders"] == [{"site": "", "run": "first", "user": "admin"}]
            async with here.user("zoe", Role.OPERATOR) as zoe:
                await zoe.submit(submission("hers", ask_json=""))
                await until(here, "hers", "running")
            await stop(here, "first")
            await until(here, "second", "running")
            await stop(here, "second", "hers")

    run(test())


def test_a_run_in_line_is_stopped_and_resumed(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(
            tmp_path / "m", **BRISK, queue=RunQueueSettings(runs_per_user=1)
        ) as here:
            await here.submit("first", then="wait")
            await here.submit("second", then="wait")
            await until(here, "second", "queued")
            await stop(here, "second")
            found = await here.run("second")
            assert (found["status"], found["queue"]) == ("stopped", None)
            await here.admin.resume_run(pb.RunRequest(run="second"))
            await until(here, "second", "queued")
            await stop(here, "first")
            await until(here, "second", "running")
            await stop(here, "second")

    run(test())


def test_a_run_whose_sites_turn_out_to_be_full_goes_back_in_line(tmp_path: Path) -> None:
    async def test() -> None:
        pauses = RunQueueSettings(first_pause_s=0.2, longest_pause_s=0.2)
        async with (
            mediating(tmp_path / "m", **BRISK, queue=pauses) as here,
            here.agent("paris") as paris,
        ):
            await here.state("paris", "ready")
            ask = WHOLE | {"count": 1}
            await here.submit("run", hold("paris")[:1], then="sites full", ask=ask)
            found = await until(here, "run", "queued")
            assert found["reason"].startswith("its sites were full when it asked; it asks again in")
            await eventually(lambda: sum(e["what"] == "over" for e in here.seen("run")) >= 2)
            assert any(each.key == "release" for each in paris.worked), "it holds nothing there"
            (here.folder / "room").touch()
            found = await here.ended("run")
            assert (found["status"], found["restarts"]) == ("finished", 0)

    run(test())


@pytest.mark.slow
def test_a_killed_mediator_keeps_the_line(tmp_path: Path) -> None:
    folder = tmp_path / "m"

    async def test() -> None:
        with process(folder) as (first, (port, join_port)):
            addresses = f"localhost:{port}", f"localhost:{join_port}"
            async with reaching(folder, *addresses) as here:
                agent = here.agent("paris")
                await agent.start()
                await here.state("paris", "ready")
                await begin(here, "first", "paris")
                await holds(here, "first", "paris")
                agent.runs = ["first"]
                await begin(here, "second", "paris")
                await begin(here, "urgent", "paris", priority_class="build")
                await in_line(here, "urgent", "second")
                first.send_signal(signal.SIGKILL)
                first.wait()
        with process(folder, port, join_port):
            async with reaching(folder, *addresses) as here:
                await here.state("paris", "ready")
                await in_line(here, "urgent", "second")
                assert (await here.run("first"))["status"] == "running"
                assert not here.seen("urgent")
                assert not here.seen("second")
                await stop(here, "first")
                await until(here, "urgent", "running")
                await in_line(here, "second")
                await stop(here, "second", "urgent")
                await agent.close()

    run(test(), 120)


NO_ASKS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown class": (
        {"priority_class": "royal"},
        "'royal' is no priority class; there are inference, build, interactive-preemptible, train",
    ),
    "no JSON": ({"ask_json": "{"}, "not what a run can ask for"),
    "no worker": ({"ask_json": '{"workers": 0}'}, "no number of 1 to"),
    "a large one": ({"ask_json": " " * 100_000}, "at most 65536 characters"),
}


def test_what_no_run_can_ask_for_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            for case, (changes, said) in NO_ASKS.items():
                code, text = await refused(here.admin.submit(submission("run", **changes)))
                assert code is grpc.StatusCode.INVALID_ARGUMENT, case
                assert said in text, case
                assert list((here.folder / "runs").glob("*")) == [], case

    run(test())
