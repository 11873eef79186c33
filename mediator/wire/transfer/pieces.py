"""Piece: a part of a blob's bytes on the wire, and the check that it is the next one.

It is the protobuf message of that name, read and written without protobuf's copies of its data.
gRPC accepts only `bytes`, so files are read directly into the message.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from io import BytesIO

import grpc

from ...proto import federation_pb2 as pb
from ..blobs.blob import Blob

_PIECE_HEAD = 128
"""The most bytes of a piece's message beside its data."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a blob."""

    data: bytes | memoryview
    digest: str = ""
    offset: int = 0


def pack(piece: Piece | bytes) -> bytes:
    """The message's bytes; the data is copied once, or not at all if packed already."""
    if isinstance(piece, bytes):
        return piece
    head = pb.Piece(digest=piece.digest, offset=piece.offset).SerializeToString()
    return b"".join((head, b"\x1a", _varint(len(piece.data)), piece.data))


class Envelope:
    """A reusable message of a piece, into which a file is read.

    Its memory is reused unless an earlier piece still holds it: `BytesIO` shares its bytes and
    copies them at the next write.
    """

    def __init__(self, data_bytes: int) -> None:
        head = b"\x1a" + _varint(data_bytes)
        self._begin, self._data_bytes = len(head), data_bytes
        self._message = BytesIO(head.ljust(len(head) + data_bytes, b"\0"))

    def fill(self, file: int, offset: int) -> int:
        """Read a file's bytes from the page cache; return their number, 0 if the disk is needed."""
        with self._message.getbuffer() as whole, whole[self._begin :] as data:
            try:
                return os.preadv(file, [data], offset, os.RWF_NOWAIT)
            except OSError:  # not cached, or not supported by the file system
                return 0

    def piece(self, nbytes: int, digest: str = "", offset: int = 0) -> Piece | bytes:
        """The bytes read, valid until the next `fill`; packed if they are full and unnamed."""
        message = self._message.getvalue()
        if nbytes == self._data_bytes and not digest:
            return message
        return Piece(memoryview(message)[self._begin :][:nbytes], digest, offset)


def unpack(message: bytes) -> Piece:
    """Parse a message into a piece; its data is a view of the message.

    Reads what `pack` writes, a short head and then the data to the end; protobuf reads other forms.
    """
    at = _data_at(message)
    if at is None:
        found = pb.Piece.FromString(message)
        return Piece(found.data, found.digest, found.offset)
    begin, head_end = at
    head = pb.Piece.FromString(message[:head_end]) if head_end else pb.Piece()
    return Piece(memoryview(message)[begin:], head.digest, head.offset)


def _data_at(message: bytes) -> tuple[int, int] | None:
    """Where the data begins and the head ends, if the data fills the rest."""
    at = 0
    if message[:2] == b"\x0a\x40":  # a digest of 64 digits
        at = 66
    if message[at : at + 1] == b"\x10":
        at += 1
        while at < len(message) and at < _PIECE_HEAD and message[at] & 0x80:
            at += 1
        at += 1
    head_end = at
    if message[at : at + 1] != b"\x1a":
        return None
    length = shift = 0
    for begin, byte in enumerate(message[at + 1 : at + 6], at + 2):
        length |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (begin, head_end) if begin + length == len(message) else None
    return None


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class BadPiece(Exception):
    """A stream got a wrong piece and cannot go on; a server ends it with `code`."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text

    def __str__(self) -> str:
        return self.text


def check_piece(piece: Piece, blob: Blob, at: int, named: bool) -> None:
    """Raise BadPiece unless these are the blob's next bytes."""
    code = grpc.StatusCode
    if piece.digest != blob.digest and (piece.digest or not named):
        raise BadPiece(
            code.INVALID_ARGUMENT,
            f"a piece of blob {blob.digest} was due, not of {piece.digest[:80]!r}",
        )
    if piece.offset != at and (piece.offset or not named):
        raise BadPiece(
            code.OUT_OF_RANGE,
            f"blob {blob.digest} goes on at {at}, and a piece came for {piece.offset}",
        )
    if not piece.data:
        raise BadPiece(code.INVALID_ARGUMENT, f"a piece of blob {blob.digest} is empty")
    if at + len(piece.data) > blob.size:
        raise BadPiece(
            code.OUT_OF_RANGE,
            f"blob {blob.digest} has {blob.size} bytes, and {len(piece.data)} more came after {at}",
        )


def ended_early(blob: Blob, at: int) -> BadPiece:
    text = f"the stream ended after {at} of the {blob.size} bytes of blob {blob.digest}"
    return BadPiece(grpc.StatusCode.OUT_OF_RANGE, text)
