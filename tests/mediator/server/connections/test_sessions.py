"""A site has one session, whose messages are checked; what breaks the protocol ends it."""

from __future__ import annotations

from pathlib import Path

import grpc
import grpc.aio
import pytest

from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.rpc import SITE, Stub
from mediators import channel_to, eventually, mediating, run
from site_conversations import beat, conversation, hello

Code = grpc.StatusCode


def test_the_newest_session_of_a_site_ends_the_one_before(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as first:
            await eventually(first.welcomed.is_set)
            async with here.agent("paris") as second:
                await eventually(second.welcomed.is_set)
                await eventually(lambda: first.farewells)
                assert first.farewells[-1].final
                assert "another agent" in first.farewells[-1].reason
                await here.state("paris", "ready")

    run(test())


@pytest.mark.parametrize("protocol", [0, 99])
def test_another_protocol_is_refused_by_name(tmp_path: Path, protocol: int) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("p", protocol=protocol) as agent:
            farewell = await eventually(lambda: agent.farewells and agent.farewells[-1])
            assert farewell.final
            assert f"this mediator speaks protocol 1, site p speaks {protocol}" in farewell.reason

    run(test())


BROKEN = {
    "a replayed number": ([hello(), beat(2), beat(2)], "repeats an earlier message"),
    "a number left out": ([hello(), beat(3)], "leaves messages out"),
    "no hello first": ([beat(1)], "begins with a hello"),
    "two hellos": ([hello(), pb.FromSite(number=2, hello=pb.Hello())], "one hello"),
    "another site's name": ([hello("rome")], "does not speak for site rome"),
    "a path for a name": ([hello("../x")], "a site's name is"),
    "data that is no JSON": ([hello(data_json="{")], "no JSON"),
    "data that is a list": ([hello(data_json="[]")], "no JSON object"),
    "an agent's id of many lines": ([hello(agent="a\nb")], "plain text"),
    "a capacity that is none": (
        [hello(capacity=pb.Capacity(total={"CPU": float("nan")}))],
        "is none",
    ),
    "held orders with impossible keys": (
        [hello(held=[pb.OrderId(run="r", key="../..\n")])],
        "an order's key",
    ),
    "an answer with an impossible blob": (
        [
            hello(),
            pb.FromSite(
                number=2,
                answer=pb.Answer(
                    id=pb.OrderId(run="r", key="k"), done=pb.Done(blob=pb.Blob(digest="/etc"))
                ),
            ),
        ],
        "a blob's digest",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_session_that_says_the_impossible_ends(
    tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    messages, problem = BROKEN[case]

    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            async with channel_to(here.address, here.keys("paris")) as channel:
                heard, code, text = await conversation(channel, *messages)
                assert code is not Code.OK
                assert problem in text
                assert heard[-1].WhichOneof("content") == "farewell"
                assert problem in heard[-1].farewell.reason
            async with here.agent("rome"):
                await here.state("rome", "ready")

    run(test())
    assert sum(problem in record.getMessage() for record in caplog.records) >= 1


def test_fields_and_messages_of_a_newer_protocol_are_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def test() -> None:
        async with (
            mediating(tmp_path / "m") as here,
            channel_to(here.address, here.keys("paris")) as channel,
        ):
            call = channel.stream_stream(
                f"/{SITE.full_name}/Session",
                request_serializer=lambda data: data,
                response_deserializer=pb.ToSite.FromString,
            )()
            await call.write(hello().SerializeToString() + b"\xf8\x02\x07")
            await call.write(b"\x08\x02\xf8\x02\x07")  # number 2, and a content of tomorrow
            await call.write(beat(3).SerializeToString())
            kinds = [(await call.read()).WhichOneof("content") for _ in range(2)]
            assert kinds == ["welcome", "renewal"]

    run(test())
    ignored = [each for each in caplog.messages if "FromSite.47" in each]
    assert len(ignored) == 1  # said once


def test_who_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            mediating(tmp_path / "m", hello_s=0.3) as here,
            channel_to(here.address, here.keys("paris")) as channel,
        ):
            _, code, text = await conversation(channel)
            assert code is Code.INVALID_ARGUMENT
            assert "no hello" in text

    run(test())


def test_held_orders_of_no_run_are_forgotten(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            held = [pb.OrderId(run="gone", key="round/1")]
            async with channel_to(here.address, here.keys("paris")) as channel:
                call = Stub(channel, SITE).session()
                await call.write(hello(held=held))
                heard = [await call.read() for _ in range(2)]
                assert heard[1].answer_taken.id == held[0]

    run(test())
