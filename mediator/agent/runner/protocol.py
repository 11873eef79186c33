"""How messages follow each other on a runner's socket: bytes in, messages out, no socket here.

A message is preceded by its length, four bytes, big endian. One that is too long is refused before
anything is kept for it.
"""

from __future__ import annotations

import struct
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError, Message

from .errors import BadFrame

PROTOCOL = 1
"""Grows when an older runner or driver could not take part; both are of one installation."""
LARGEST_MESSAGE = 16 << 20
"""Bytes; headers are far smaller, and tensors do not travel here."""
_LENGTH = struct.Struct(">I")

M = TypeVar("M", bound=Message)


def framed(message: Message) -> bytes:
    """A message as it is sent; BadFrame if nobody would take it."""
    content = message.SerializeToString()
    if len(content) > LARGEST_MESSAGE:
        raise BadFrame(f"a message of {len(content)} bytes, over {LARGEST_MESSAGE}")
    return _LENGTH.pack(len(content)) + content


class Frames(Generic[M]):
    """What came on one connection so far, cut into messages of one kind."""

    def __init__(self, kind: type[M]) -> None:
        self._kind = kind
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """The messages that these bytes complete; BadFrame for what is none."""
        self._rest += data
        found = []
        while (end := self._end()) is not None and end <= len(self._rest):
            content = bytes(self._rest[_LENGTH.size : end])
            del self._rest[:end]
            try:
                found.append(self._kind.FromString(content))
            except DecodeError:
                name = self._kind.DESCRIPTOR.name
                raise BadFrame(f"{len(content)} bytes that are no {name}") from None
        return found

    def _end(self) -> int | None:
        """Where the first message ends; None if not even its length is there."""
        if len(self._rest) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._rest)
        if length > LARGEST_MESSAGE:
            raise BadFrame(f"a message claims {length} bytes, over {LARGEST_MESSAGE}")
        return _LENGTH.size + int(length)
