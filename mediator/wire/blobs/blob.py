"""Blob: bytes by name; the name is the SHA-256 of the bytes, and how many they are."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from .errors import BadBlob

LARGEST_BLOB = 1 << 40
"""Bytes; no blob is larger, whatever a store or a peer would take."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


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


def is_digest(text: str) -> bool:
    """Whether it is one; what is, is harmless as a file's name."""
    return _DIGEST.fullmatch(text) is not None


def check_digest(digest: str) -> None:
    """Raise BadBlob unless it is one."""
    if not is_digest(digest):
        raise BadBlob(f"a blob's digest is 64 digits of 0-9a-f, not {digest[:80]!r}")


def digest_of(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
