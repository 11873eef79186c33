"""The plain files of a run's folder: which there are, and their bytes."""

from __future__ import annotations

import os
from pathlib import Path

MOST_FILES = 10_000


def files_of(folder: Path) -> list[tuple[str, int]]:
    """The plain files of a run, with their sizes; nothing hidden, and no links."""
    found: list[tuple[str, int]] = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(root) / name
            if name.startswith(".") or path.is_symlink():
                continue
            found.append((path.relative_to(folder).as_posix(), path.stat().st_size))
            if len(found) >= MOST_FILES:
                return found
    return found


def read_at(path: Path, offset: int, nbytes: int) -> bytes:
    """Some bytes of a file; none at its end, or while it is not there."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(file, nbytes, offset)
    finally:
        os.close(file)
