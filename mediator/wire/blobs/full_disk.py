"""Measures free disk space, and recognizes errors of a full disk."""

from __future__ import annotations

import errno
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from ...core.storage.disk import Space
from .errors import NoRoomOnDisk

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_IN_WORDS = re.compile(r"\(os error (28|122)\)|No space left on device|Disk quota exceeded")
_IN_WORDS_ONLY = frozenset({"SafetensorError", "OutOfDiskError"})
"""Libraries' errors that have the system's text, but not its number."""
_LONGEST_CHAIN = 10


def space_of(folder: Path) -> Space:
    found = shutil.disk_usage(folder)
    return Space(total=found.total, free=found.free)


def is_full(error: BaseException) -> bool:
    """Whether an error or one of its causes is a full disk or a used-up quota."""
    return any(_is_full(each) for each in _chain(error))


def _is_full(error: BaseException) -> bool:
    match error:
        case NoRoomOnDisk():
            return True
        case OSError():
            return error.errno in FULL
        case sqlite3.Error():
            return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
    return type(error).__name__ in _IN_WORDS_ONLY and bool(_IN_WORDS.search(str(error)))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes; Ray keeps a worker's error as `cause`."""
    found: BaseException | None = error
    for _ in range(_LONGEST_CHAIN):
        if not isinstance(found, BaseException):
            return
        yield found
        found = found.__cause__ or getattr(found, "cause", None)
