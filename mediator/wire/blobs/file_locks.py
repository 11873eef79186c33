"""Locks on the files of a store, for processes that share its folder; they end with their process.

A lock on the folder lets one process at a time add or remove a name.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import BlobBusy


def locked(path: Path) -> int:
    """Open and lock a part; BlobBusy if another writer has it."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise BlobBusy(f"{path.name} is being written already") from None
        if os.fstat(file).st_nlink:
            return file
        os.close(file)  # removed between the two calls


def remove_unused(path: Path) -> bool:
    """Remove a file unless a process has locked it; return whether it is gone."""
    # Otherwise another file could take the name after the lock, and be removed unlocked.
    with names_held(path.parent):
        try:
            file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            return False
        finally:
            os.close(file)
    return True


@contextmanager
def names_held(folder: Path) -> Iterator[None]:
    """Keep other processes from adding or removing names; hold it for a few system calls only."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
