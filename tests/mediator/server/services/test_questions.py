"""Users ask runs that go on about their clients, with tensors of any size."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
from safetensors.numpy import load, save

from fedpilot.mediator.identity import Role
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.messages import PROTOCOL
from fedpilot.mediator.wire.rpc import LARGEST_MESSAGE
from mediators import eventually, mediating
from runs_at_mediators import (
    failure_of,
    run,
    seen,
)

Code = grpc.StatusCode


def test_users_ask_runs_that_go_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="serve")
            await eventually(lambda: seen(here, "attached"))
            asked, data = {"client": "client_7"}, save({"x": np.arange(4.0)})
            reply, tensors = await here.ask("run", "node.train", asked, data)
            assert json.loads(reply.done.header_json) == asked
            np.testing.assert_array_equal(load(tensors)["x"], 2 * np.arange(4.0))
            wrong, _ = await here.ask("run", "wrong", {})
            assert "that is wrong" in wrong.failure.message
            await here.admin.stop_run(pb.RunRequest(run="run"))
            await here.ended("run")
            assert (await failure_of(here.ask("run", "x", {})))[0] is Code.FAILED_PRECONDITION

    run(test())


def test_the_clients_of_a_run_are_asked_by_its_owner_and_by_admins(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.user("alice", Role.OPERATOR) as alice:
            config = json.dumps({"orders": []})
            await alice.submit(
                pb.SubmitRequest(protocol=PROTOCOL, run="run", config_yaml=config, name="n")
            )
            await here.ended("run")  # so that who may ask hears that nobody answers any more
            told = {}
            for name, role in (
                ("alice", Role.OPERATOR),
                ("root", Role.ADMIN),
                ("bob", Role.OPERATOR),
            ):
                async with here.user(name, role) as user:
                    asked = [pb.AskRunRequest(run="run", kind="node.list", header_json="{}")]
                    told[name] = await failure_of(anext(aiter(user.ask_run(iter(asked)))))
        assert told["alice"][0] is told["root"][0] is Code.FAILED_PRECONDITION
        assert told["bob"] == (
            Code.PERMISSION_DENIED,
            "run run belongs to alice: only its owner and admins may ask about its clients; "
            "found bob (operator)",
        )

    run(test())


def test_tensors_larger_than_a_message_go_to_a_run_and_come_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="serve")
            model = np.arange(LARGEST_MESSAGE // 4)
            _, tensors = await here.ask("run", "node.train", {}, save({"x": model}))
            assert len(tensors) > 2 * LARGEST_MESSAGE
            np.testing.assert_array_equal(load(tensors)["x"], 2 * model)

    run(test())


RIGHT = save({"x": np.arange(100.0)})
WRONG = {
    "bytes are missing": (RIGHT, RIGHT[:-1]),
    "there are too many": (RIGHT, RIGHT + b"x"),
    "they are others": (RIGHT, b"x" * len(RIGHT)),
    "they are no tensors": (b"x" * 100, b"x" * 100),
}
"""What was announced, and what came."""


def test_tensors_that_are_not_what_was_announced_reach_no_run(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="serve")
            await eventually(lambda: seen(here, "attached"))
            for case, (announced, sent) in WRONG.items():
                asking = here.ask("run", "node.train", {}, sent, announced=announced)
                assert (await failure_of(asking))[0] is Code.INVALID_ARGUMENT, case
                assert not list((here.folder / "blobs").glob("*.part")), case

    run(test())


def test_a_question_waits_for_a_run_that_comes_up_and_nothing_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="serve")
            asking = asyncio.create_task(here.ask("run", "node.show", {"client": "a"}))
            assert not seen(here, "attached")
            reply, _ = await asking
            assert json.loads(reply.done.header_json) == {"client": "a"}
            assert [each for each in caplog.records if "refused" in each.message] == []

    run(test())
