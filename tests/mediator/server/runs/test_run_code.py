"""The code that comes with a run is bytes to a mediator: kept as they are, never looked into."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from pathlib import Path

import grpc
import grpc.aio
import pytest

from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server.runs.runs import LARGEST_CODE
from fedpilot.mediator.wire.messages import PROTOCOL
from mediators import Here, mediating, refused

CODE = b"PK\x03\x04, or whatever this may be"


async def submit(here: Here, code: bytes, run: str = "run") -> None:
    config = json.dumps({"orders": [], "then": "wait"})
    request = pb.SubmitRequest(protocol=PROTOCOL, run=run, config_yaml=config, name="n", code=code)
    await here.admin.submit(request)


def test_code_is_kept_with_the_run_as_it_came(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await submit(here, CODE)
            await submit(here, CODE)
            folder = here.folder / "runs" / "run"
            assert (folder / "code.zip").read_bytes() == CODE
            facts = json.loads((folder / "submission.json").read_text())
            assert facts["code"] == hashlib.sha256(CODE).hexdigest()
            files = (await here.admin.list_files(pb.RunRequest(run="run"))).files
            assert {"code.zip", "config.yaml"} <= {file.path for file in files}

            code, said = await refused(submit(here, CODE + b"!"))
            assert code is grpc.StatusCode.ALREADY_EXISTS
            assert "another run called run, of other code" in said
            assert (folder / "code.zip").read_bytes() == CODE

    asyncio.run(test())


def test_a_run_without_code_has_none(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await submit(here, b"")
            folder = here.folder / "runs" / "run"
            assert not (folder / "code.zip").exists()
            assert json.loads((folder / "submission.json").read_text())["code"] == ""

    asyncio.run(test())


def test_a_mediator_may_take_no_code(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m", user_code=False) as here:
            code, said = await refused(submit(here, CODE))
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert "this mediator takes no code that a run brings" in said
            await submit(here, b"")

    asyncio.run(test())


@pytest.mark.parametrize("user_code", [True, False])
def test_coordinators_are_told_whether_code_may_be_run(tmp_path: Path, user_code: bool) -> None:
    script = "import sys, pathlib; pathlib.Path(sys.argv[1], 'told').write_text(sys.argv[-1])"

    async def test() -> None:
        command = (sys.executable, "-c", script)
        async with mediating(tmp_path / "m", user_code=user_code, coordinator=command) as here:
            await submit(here, b"")
            await here.ended("run")
            told = (here.folder / "told").read_text()
            assert told == ("run" if user_code else "--no-user-code")

    asyncio.run(test())


def test_too_much_code_is_refused_before_it_is_kept(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            code, said = await refused(submit(here, bytes(LARGEST_CODE + 1)))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert f"at most {LARGEST_CODE} bytes; found {LARGEST_CODE + 1}" in said
            assert not (here.folder / "runs" / "run").exists()

    asyncio.run(test())
