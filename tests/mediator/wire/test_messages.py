"""What both ends agree on: numbers, names, and records that survive the way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.mediator import Payload
from fedpilot.mediator.core.health import SiteState
from fedpilot.mediator.core.links import LinkSpeed
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire import messages
from fedpilot.mediator.wire.blobs.blob import Blob
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.messages import (
    PROTOCOL,
    BadMessage,
    Capacity,
    Numbering,
    ProtocolRefused,
    SiteName,
    SiteStanding,
)


@pytest.mark.parametrize(
    ("found", "upgrade"),
    [
        pytest.param(PROTOCOL + 98, "this mediator", id="a newer peer asks us to be upgraded"),
        pytest.param(0, "site paris", id="an older peer is to be upgraded"),
    ],
)
def test_a_protocol_that_is_not_spoken_is_refused_by_name(found: int, upgrade: str) -> None:
    with pytest.raises(ProtocolRefused) as caught:
        messages.check_protocol(found, here="this mediator", there="site paris")
    assert f"site paris speaks {found}" in str(caught.value)
    assert str(caught.value).endswith(f"upgrade {upgrade}")
    messages.check_protocol(PROTOCOL, here="this mediator", there="site paris")


def test_fields_that_are_not_known_are_named() -> None:
    newer = pb.FromSite(number=1, hello=pb.Hello(site="paris")).SerializeToString()
    inner = pb.Hello(site="paris").SerializeToString() + b"\xfa\x01\x01x"  # field 31, one byte
    nested = b"\x08\x01\x12" + bytes([len(inner)]) + inner + b"\xf8\x02\x07"  # and field 47 outside
    assert messages.unknown_fields(messages.parsed(pb.FromSite, newer)) == ()
    message = messages.parsed(pb.FromSite, nested)
    assert messages.unknown_fields(message) == ("FromSite.47", "Hello.31")
    assert message.hello.site == "paris"


def test_of_many_unknown_fields_some_are_named() -> None:
    strange = b"".join(
        pb.FromSite(number=1).SerializeToString() + _varint(number << 3) + b"\x01"
        for number in range(100, 400)
    )
    named = messages.unknown_fields(messages.parsed(pb.FromSite, strange))
    assert len(named) == messages.MOST_NAMED


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(BadMessage, match="3 bytes that are no Hello"):
        messages.parsed(pb.Hello, b"\xff\xff\xff")


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        pytest.param([1, 2, 2], "repeats", id="a replayed message"),
        pytest.param([1, 2, 1], "repeats", id="an old message"),
        pytest.param([1, 3], "leaves messages out", id="a message that was left out"),
        pytest.param([0], "repeats", id="no number at all"),
        pytest.param([1, 2**64 - 1], "leaves messages out", id="the largest number"),
    ],
)
def test_numbers_count_up_by_one(numbers: list[int], problem: str) -> None:
    theirs = Numbering()
    for number in numbers[:-1]:
        theirs.check(number)
    with pytest.raises(BadMessage, match=problem):
        theirs.check(numbers[-1])


def test_numbers_that_one_end_gives_are_those_the_other_expects() -> None:
    ours, theirs = Numbering(), Numbering()
    for _ in range(5):
        theirs.check(ours.next())


BAD_NAMES = [
    pytest.param("", id="empty"),
    pytest.param("../../etc/passwd", id="a path upwards"),
    pytest.param("/etc/passwd", id="an absolute path"),
    pytest.param("a/b", id="a path"),
    pytest.param("..", id="the folder above"),
    pytest.param(".hidden", id="a hidden file"),
    pytest.param("a\x00b", id="a zero byte"),
    pytest.param("a\nb", id="a line break"),
    pytest.param("a\n", id="a line break at the end"),
    pytest.param("-rf", id="an option"),
    pytest.param("ü", id="a letter beyond ASCII"),
    pytest.param("a" * 129, id="too long"),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_could_be_anything_else_are_refused(name: str) -> None:
    with pytest.raises(BadMessage):
        messages.check_run(name)
    with pytest.raises(BadMessage):
        messages.check_site(name)


@pytest.mark.parametrize("name", ["a", "quickstart-20260102-030405-a1b2", "run_1.v2"])
def test_names_of_runs_and_sites_are_taken(name: str) -> None:
    assert messages.check_run(name) == messages.check_site(name) == name


@pytest.mark.parametrize("key", ["", "a b", "a\nb", "/a", "x" * 257, "ü", "a\\b"])
def test_keys_that_make_no_sense_are_refused(key: str) -> None:
    with pytest.raises(BadMessage):
        messages.order_id(pb.OrderId(run="run", key=key))


def test_an_order_of_the_mediator_itself_has_no_run() -> None:
    assert messages.order_id(pb.OrderId(run="", key="command/1")).run == messages.COMMANDS


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(pb.Order(id=pb.OrderId(run="r", key="k"), verb="rm"), id="a strange verb"),
        pytest.param(
            pb.Order(id=pb.OrderId(run="r", key="k"), verb="work", blob=pb.Blob(digest="../x")),
            id="a path for a digest",
        ),
        pytest.param(
            pb.Order(
                id=pb.OrderId(run="r", key="k"),
                verb="work",
                blob=pb.Blob(digest="0" * 64, size=10 * (1 << 40)),
            ),
            id="ten terabytes",
        ),
    ],
)
def test_orders_that_make_no_sense_are_refused(order: pb.Order) -> None:
    with pytest.raises(BadMessage):
        messages.check_order(order)


@pytest.mark.parametrize(
    "capacity",
    [
        pytest.param(pb.Capacity(total={"CPU": float("nan")}), id="not a number"),
        pytest.param(pb.Capacity(free={"CPU": -1.0}), id="less than nothing"),
        pytest.param(pb.Capacity(total={"CPU": float("inf")}), id="no end"),
        pytest.param(pb.Capacity(total={"x" * 200: 1.0}), id="a long name"),
        pytest.param(pb.Capacity(total={str(n): 1.0 for n in range(300)}), id="too many"),
    ],
)
def test_capacities_that_are_none_are_refused(capacity: pb.Capacity) -> None:
    with pytest.raises(BadMessage):
        messages.capacity_of(capacity)


resources = st.dictionaries(st.text(max_size=20), st.floats(0, 1e12), max_size=5)


figures = st.none() | st.floats(1e-6, 1e12)


@settings(max_examples=settings().max_examples // 3)
@given(
    resources,
    resources,
    st.integers(0, 1000),
    st.sampled_from(SiteState),
    st.text(),
    st.builds(LinkSpeed, up=st.floats(1, 1e9), up_measured_at=figures, round_trip_s=figures),
)
def test_standings_survive_the_way(
    total: dict[str, float],
    free: dict[str, float],
    machines: int,
    state: SiteState,
    reason: str,
    link: LinkSpeed,
) -> None:
    standing = SiteStanding(
        name=SiteName("paris"),
        state=state,
        reason=reason,
        capacity=Capacity(total=total, free=free, machines=machines),
        data_json="{}",
        link=link,
    )
    sent = messages.standing_message(standing).SerializeToString()
    assert messages.standing_of(pb.SiteStanding.FromString(sent)) == standing


def test_payloads_survive_the_way(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 1 << 20)
    payload = Payload(kind="round", header={"round": 3}, tensors={"w": np.arange(6.0)})
    sent = messages.done_message(payload, store)
    found = messages.payload_of(pb.Done.FromString(sent.SerializeToString()), store)
    assert (found.kind, found.header) == ("round", {"round": 3})
    np.testing.assert_array_equal(found.tensors["w"], payload.tensors["w"])
    done = messages.done_message(Payload(kind="done"), store)
    assert messages.blob_of(done.blob) is None


def test_a_payload_without_its_blob_is_refused(tmp_path: Path) -> None:
    missing = messages.blob_message(Blob("0" * 64, 8))
    with pytest.raises(BadMessage, match="is not there"):
        messages.payload_of(
            pb.Done(kind="done", header_json="{}", blob=missing), BlobStore(tmp_path, 1 << 20)
        )
