"""Blob: the name of some bytes, which is their SHA-256 and their number."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fedpilot.common.text.names import is_digest as is_digest

from .errors import BadBlob

LARGEST_BLOB = 1 << 40
"""Bytes; no blob is larger in any store."""


@dataclass(frozen=True, slots=True)
class Blob:
    """The name of some bytes."""

    digest: str
    """SHA-256, 64 hexadecimal digits in lower case."""
    size: int
    """Bytes."""

    def __post_init__(self) -> None:
        check_digest(self.digest)
        if not 0 <= self.size <= LARGEST_BLOB:
            raise BadBlob(f"a blob has 0 to {LARGEST_BLOB} bytes, not {self.size}")


def check_digest(digest: str) -> None:
    """Raise BadBlob unless the text is a digest."""
    if not is_digest(digest):
        raise BadBlob(f"a blob's digest is 64 digits of 0-9a-f, not {digest[:80]!r}")


def digest_of(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
