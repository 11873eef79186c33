"""Runs are submitted once, stopped and resumed."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server.runs.run_states import RunStates
from fedpilot.mediator.server.store import RunState, Store
from fedpilot.mediator.wire.messages import PROTOCOL
from mediators import eventually, mediating
from runs_at_mediators import (
    RUN,
    failure_of,
    run,
    seen,
)

Code = grpc.StatusCode


def test_a_run_is_resumed_as_soon_as_its_end_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sees `stopped` may ask at once: its supervisor has not let go of it yet."""
    written, may_go_on = asyncio.Event(), asyncio.Event()
    original = RunStates.insist

    async def slowly(states: RunStates, *arguments: Any, **facts: Any) -> None:
        await original(states, *arguments, **facts)
        written.set()
        await may_go_on.wait()

    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="wait")
            await eventually(lambda: seen(here, "attached"))
            monkeypatch.setattr(RunStates, "insist", slowly)
            await here.admin.stop_run(pb.RunRequest(run="run"))
            await written.wait()
            resuming = asyncio.ensure_future(here.admin.resume_run(pb.RunRequest(run="run")))
            await asyncio.sleep(0.2)
            may_go_on.set()
            found = json.loads((await resuming).run_json)
            assert found["status"] in ("submitted", "running")
            await eventually(lambda: len(seen(here, "attached")) == 2)
            monkeypatch.undo()
            await here.admin.stop_run(pb.RunRequest(run="run"))
            assert (await here.ended("run"))["status"] == "stopped"

    run(test())


def test_a_run_is_stopped_resumed_and_submitted_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="wait")
            again = await here.submit("run", then="wait")
            assert again["run_id"] == "run"
            code, _ = await failure_of(here.submit("run", then="fail"))
            assert code is Code.ALREADY_EXISTS
            await eventually(lambda: seen(here, "attached"))
            asked = pb.RunRequest(run="run")
            await here.admin.stop_run(asked)
            assert (await here.ended("run"))["status"] == "stopped"
            await here.admin.resume_run(asked)
            await eventually(lambda: len(seen(here, "attached")) == 2)
            await here.admin.stop_run(asked)
            assert (await here.ended("run"))["status"] == "stopped"
            code, text = await failure_of(here.admin.stop_run(pb.RunRequest(run="nothing")))
            assert (code, "no run nothing" in text) == (Code.NOT_FOUND, True)
            acts = [
                json.loads(each)["act"]
                for each in (await here.admin.list_audit(pb.ListAuditRequest())).entry_json
            ]
            assert acts == [
                "submit",
                "submit",
                "submit",
                "stop_run",
                "resume_run",
                "stop_run",
                "stop_run",
            ]

    run(test())


def test_a_run_that_was_not_handed_in_whole_is_begun_when_it_is_submitted_again(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="wait")
            await eventually(lambda: seen(here, "attached"))
            await here.admin.stop_run(pb.RunRequest(run="run"))
            record = await here.ended("run")
        url = f"sqlite:///{tmp_path / 'm' / 'mediator.sqlite'}"
        with Store(url) as store:  # as if the mediator was killed before it wrote the folder
            store.set_run_state(RUN, RunState.SUBMITTED, among=[RunState.STOPPED])
        shutil.rmtree(record["folder"])
        async with mediating(tmp_path / "m") as here:
            found = await here.run("run")
            assert (found["status"], "submitting it again" in found["reason"]) == (
                "submitted",
                True,
            )
            await here.submit("run", then="wait")
            await eventually(lambda: seen(here, "attached"))
            found = await here.run("run")
            assert (found["status"], found["reason"]) == ("running", "")

    run(test())


NONSENSE: dict[str, dict[str, Any]] = {
    "a path for an id": {"run": "../../tmp/x"},
    "no id": {"run": ""},
    "no config": {"config_yaml": ""},
    "a config of megabytes": {"config_yaml": "x" * (2 << 20)},
    "a name of many lines": {"name": "a\nb"},
    "another protocol": {"protocol": 99},
}


def test_submissions_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            asked = {"protocol": PROTOCOL, "run": "run", "config_yaml": "{}", "name": "n"}
            for case, changes in NONSENSE.items():
                request = pb.SubmitRequest(**{**asked, **changes})
                code, _ = await failure_of(here.admin.submit(request))
                assert code in (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION), case
                assert list((here.folder / "runs").glob("*")) == [], case

    run(test())
