"""What users read of runs: lists, files, logs and events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from fedpilot.mediator.identity import Role
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server.services import administration, user_runs
from fedpilot.mediator.server.store import RunRecord, RunState, Store
from mediators import Here, mediating
from runs_at_mediators import (
    failure_of,
    orders,
    run,
)

Code = grpc.StatusCode


def test_many_runs_are_listed_in_answers_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_runs, "MOST_RUNS", 2)

    async def page(here: Here, **asked: Any) -> tuple[list[str], int]:
        reply = await here.admin.list_runs(pb.ListRunsRequest(**asked))
        return [json.loads(each)["run_id"] for each in reply.run_json], reply.more

    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            with Store(f"sqlite:///{here.folder / 'mediator.sqlite'}") as store:
                for number in range(5):
                    store.add_run(
                        RunRecord(
                            id=f"r{number}",
                            name="n",
                            owner="alice",
                            config_yaml="x" * 1_000,
                            state=RunState.FINISHED,
                            submitted_at=float(number),
                        )
                    )
            assert await page(here) == (["r4", "r3"], 3)
            assert await page(here, most=1) == (["r4"], 4)
            assert await page(here, most=99, after="r3") == (["r2", "r1"], 1)
            assert await page(here, after="r1") == (["r0"], 0)
            for module in (user_runs, administration):
                monkeypatch.setattr(module, "TOLD_TOGETHER_BYTES", 600)
            assert await page(here) == (["r4"], 4)
            act = pb.RunRequest(run="nobody")
            for _ in range(5):
                await failure_of(here.admin.stop_run(act))
            reply = await here.admin.list_audit(pb.ListAuditRequest(last=100))
            assert 1 <= len(reply.entry_json) < 5

    run(test())


def test_files_and_logs_of_a_run_are_read_and_nothing_else(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", orders("oslo"), shared=True)
            await here.ended("run")
            (here.folder / "runs" / "run" / "link").symlink_to("/etc/passwd")
            (here.folder / "runs" / "run" / ".hidden").write_text("x")
            async with here.user("vera", Role.VIEWER) as viewer:
                files = (await viewer.list_files(pb.RunRequest(run="run"))).files
                names = [each.path for each in files]
                assert "seen.jsonl" in names
                assert not {"link", ".hidden"} & set(names)
                for name in ("link", ".hidden", "../../certs/ca.key", "/etc/passwd", ""):
                    request = pb.ReadFileRequest(run="run", path=name)
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        async for _ in viewer.read_file(request):
                            pass
                    assert caught.value.code() is Code.NOT_FOUND, name
                request = pb.ReadFileRequest(run="run", path="config.yaml")
                data = b"".join([each.data async for each in viewer.read_file(request)])
                assert json.loads(data)["orders"] == orders("oslo")
                parts = [each.text async for each in viewer.run_log(pb.LogRequest(run="run"))]
                assert isinstance("".join(parts), str)

    run(test())


def test_a_run_is_followed_to_its_end(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="wait")
            stream = here.admin.follow_run(pb.FollowRequest(run="run", follow=True))
            first = await stream.read()
            assert json.loads(first.event_json)["event"] == "run_started"
            await here.admin.stop_run(pb.RunRequest(run="run"))
            last = await stream.read()
            assert json.loads(last.event_json)["event"] == "run_finished"
            assert await stream.read() is grpc.aio.EOF
            later = here.admin.follow_run(
                pb.FollowRequest(run="run", follow=True, after=first.number)
            )
            assert len([each async for each in later]) == 1

    run(test())
