"""Writes files as a whole or not at all, even if the writer dies.

A durable file survives a power cut: its bytes and its folder's entry are synced.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, mode: int = 0o666, *, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to; at the end of the block it replaces `path`.

    If the block raises, `path` stays as it was. The umask applies to `mode`. OSError.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    file = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    granted = os.fstat(file).st_mode & 0o777
    os.close(file)
    try:
        yield aside
        aside.chmod(granted)  # some libraries replace it with a file that only its owner reads
        if durable:
            sync(aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Sync a file's bytes, or a folder's entries, to disk. OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
