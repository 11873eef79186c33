"""A piece is packed and read as protobuf does it, without a copy of its data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from broken_transfers import DATA, World, blob_of, in_a_world, put
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.transfer import Piece, pack, unpack
from fedpilot.mediator.wire.transfer.pieces import Envelope

digests = st.sampled_from(["", "a" * 64, "b" * 63, "é"])


@given(digests, st.integers(0, 2**64 - 1), st.binary(max_size=300))
def test_a_piece_is_packed_as_protobuf_reads_it_and_the_other_way_round(
    digest: str, offset: int, data: bytes
) -> None:
    theirs = pb.Piece(digest=digest, offset=offset, data=data)
    assert pb.Piece.FromString(pack(Piece(data, digest, offset))) == theirs
    assert unpack(theirs.SerializeToString()) == Piece(data, digest, offset)


@given(
    st.binary(max_size=40)
    | st.builds(
        bytes.__add__,
        st.sampled_from([b"\x1a", b"\x10\x05\x1a", b"\x0a\x40" + b"a" * 64 + b"\x10\x80\x01\x1a"]),
        st.binary(),
    )
)
def test_any_message_is_read_as_protobuf_reads_it(message: bytes) -> None:
    try:
        theirs = pb.Piece.FromString(message)
    except Exception as error:
        with pytest.raises(type(error)):
            unpack(message)
    else:
        assert unpack(message) == Piece(theirs.data, theirs.digest, theirs.offset)


def test_the_data_of_a_piece_is_not_copied_when_it_is_read() -> None:
    assert isinstance(unpack(pack(Piece(b"x" * 1_000, "a" * 64, 5))).data, memoryview)


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is: not every file system can tell."""
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, buffers, at, flags: read(file, buffers, at))


@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize(
    ("offset", "digest"),
    [
        pytest.param(0, blob_of(DATA).digest, id="the first has a name"),
        pytest.param(7_000, "", id="most are whole"),
        pytest.param(98_000, "", id="the last is short"),
    ],
)
def test_an_envelope_holds_a_piece_of_a_file(tmp_path: Path, offset: int, digest: str) -> None:
    envelope, wanted = Envelope(7_000), DATA[offset : offset + 7_000]
    (tmp_path / "file").write_bytes(DATA)
    with (tmp_path / "file").open("rb") as file:
        assert envelope.fill(file.fileno(), offset) == len(wanted)
    message = pack(envelope.piece(len(wanted), digest, offset if digest else 0))
    assert message == pack(Piece(wanted, digest, offset if digest else 0))


@pytest.mark.usefixtures("in_memory")
def test_what_an_envelope_held_stays_as_it_was_while_somebody_has_it(tmp_path: Path) -> None:
    envelope = Envelope(7_000)
    (tmp_path / "file").write_bytes(DATA)
    with (tmp_path / "file").open("rb") as file:
        held = []
        for offset in (0, 7_000, 14_000):
            envelope.fill(file.fileno(), offset)
            held.append(pack(envelope.piece(7_000)))
    assert [unpack(each).data for each in held] == [
        DATA[offset : offset + 7_000] for offset in (0, 7_000, 14_000)
    ]


def test_what_is_not_in_memory_is_asked_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", never)

    async def act(there: World) -> None:
        path = await there.client.download(put(there.mediator, DATA))
        assert path.read_bytes() == DATA

    in_a_world(tmp_path, act)
