"""A mediator whose disk is full waits, and says so: no run ends by that."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from fake_agents import QUICK, promise_and_echo
from fedpilot.mediator import Payload
from fedpilot.mediator.core.storage.disk import Space
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server.runs.run_folders import RunFolders
from fedpilot.mediator.wire.blobs.part import PartialBlob
from mediators import Here, mediating


class Disk:
    """The disk of the mediator's folder."""

    full = False

    def __call__(self, folder: Path) -> Space:
        return Space(total=1_000_000_000, free=0 if self.full else 500_000_000)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr("fedpilot.mediator.server.process.space_of", made)
    return made


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 120))


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def reason_of(here: Here) -> str:
    return str((await here.run("run"))["reason"])


async def until_reason(here: Here, beginning: str) -> str:
    async with asyncio.timeout(60):
        while not (found := await reason_of(here)).startswith(beginning):
            await asyncio.sleep(0.05)
    return found


def test_a_run_that_finds_no_room_waits_and_goes_on_once_there_is(
    tmp_path: Path, disk: Disk
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            disk.full = True
            await here.submit("run", then="no room")
            found = await until_reason(here, "it waits: the disk of the mediator is full")
            assert found.endswith("0 B of 1 GB are free, and 50 MB have to be")
            assert (await here.run("run"))["status"] == "running"
            waiting = [each for each in await here.events() if each["event"] == "run_waiting"]
            assert [each["run"] for each in waiting] == ["run"]
            (here.folder / "room").touch()
            disk.full = False
            found_ = await here.ended("run", 60)
            assert (found_["status"], found_["reason"], found_["restarts"]) == ("finished", "", 0)
            names = [each["event"] for each in await here.events()]
            assert names.count("disk_full") == names.count("disk_has_room") == 1

    run(test())


def test_a_run_that_waits_for_room_can_be_stopped(tmp_path: Path, disk: Disk) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            disk.full = True
            await here.submit("run", then="no room")
            await until_reason(here, "it waits: ")
            await here.admin.stop_run(pb.RunRequest(run="run"))
            assert (await here.ended("run"))["status"] == "stopped"

    run(test())


def test_what_a_user_asks_that_needs_room_is_refused_as_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            with monkeypatch.context() as patching:
                patching.setattr(RunFolders, "write", no_space)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await here.submit("run")
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "the mediator's disk is full" in str(caught.value.details())
            await here.submit("run")
            assert (await here.ended("run"))["status"] == "finished"

    run(test())


def test_a_site_brings_its_answer_once_the_mediator_has_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0
    write = PartialBlob.write

    def full(part: PartialBlob, *data: bytes | memoryview) -> None:
        nonlocal refused
        if part._path.is_relative_to(tmp_path / "m") and refused < 7:
            refused += 1
            no_space()
        write(part, *data)

    async def doubled(order: pb.Order, payload: Payload) -> Payload:
        if order.verb != "work":
            return await promise_and_echo(order, payload)
        tensors = {name: np.asarray(each) * 2 for name, each in payload.tensors.items()}
        return Payload(kind="done", tensors=tensors)

    monkeypatch.setattr(PartialBlob, "write", full)
    monkeypatch.setattr("fake_agents.QUICK", replace(QUICK, longest_pause_s=0.05))

    async def test() -> None:
        async with (
            mediating(tmp_path / "m") as here,
            here.agent("paris", work=doubled),
        ):
            order = {"site": "paris", "key": "round/1", "numbers": 1000}
            await here.submit("run", [order], wait_for=1)
            assert (await here.ended("run", 60))["status"] == "finished"
            (answer,) = [each for each in here.seen("run") if each["what"] == "answer"]
            assert answer["sum"] == 999_000.0
            assert refused == 7

    run(test())
