"""Files that are there as a whole or not at all, even if their writer dies.

A file is written beside its place and renamed into it. A durable one survives a power cut: its
bytes are on disk before it is renamed, and its folder's entry before the caller goes on.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, mode: int = 0o666, *, durable: bool = False) -> Iterator[Path]:
    """Yield a path to write to; what is there in the end takes the place of `path`.

    If the block raises, `path` stays as it was. The umask is taken from `mode`. OSError.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    file = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    granted = os.fstat(file).st_mode & 0o777
    os.close(file)
    try:
        yield aside
        aside.chmod(granted)  # some libraries put a private file of their own there
        if durable:
            sync(aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Have a file's bytes, or a folder's entries, on disk. OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
