"""Locks on the files of a store, for processes that share its folder; they end with their process.

A lock on the folder lets one process at a time give or remove a name.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import BlobBusy


def locked(path: Path) -> int:
    """Open a part that nobody else writes; BlobBusy if somebody does."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise BlobBusy(f"{path.name} is being written already") from None
        if os.fstat(file).st_nlink:
            return file
        os.close(file)  # it was removed between the two calls


def remove_unused(path: Path) -> bool:
    """Remove a file that no process has locked; whether it is gone."""
    # Else another file could get that name after this one was locked, and be removed unlocked.
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
    """Keep other processes from giving or removing names; for a few system calls at most."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
