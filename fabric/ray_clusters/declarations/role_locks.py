"""RoleLocks: which roles this process holds, by locks on files that end with the process.

The kernel keeps the lock for as long as a process has the file open, so it needs no clock, and a
dead process loses it at once. A stopped one keeps it. Programs that the process starts do not
inherit it; a child that is forked and starts no program does, and keeps it after its parent.
"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

from .records import RoleName

_ROLE = re.compile(r"[a-z][a-z0-9-]*")


class RoleLocks:
    """The locks beside one store; use it from one thread at a time."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._held: dict[RoleName, int] = {}

    def take(self, role: RoleName) -> bool:
        """Whether this store now holds the role; False if it or another held it before. OSError."""
        descriptor = locked(self._file_of(role))
        if descriptor is None:
            return False
        self._held[role] = descriptor
        return True

    def is_held(self, role: RoleName) -> bool:
        """Whether a living process, or this one, holds the role. OSError."""
        if role in self._held:
            return True
        descriptor = locked(self._file_of(role))
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    def drop(self, role: RoleName) -> None:
        """Give up a role, held or not."""
        if (descriptor := self._held.pop(role, None)) is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Give up all roles; may be called twice."""
        for role in tuple(self._held):
            self.drop(role)

    def _file_of(self, role: RoleName) -> Path:
        if not _ROLE.fullmatch(role):
            raise ValueError(f"a role is a word of lower-case letters, digits and '-': {role!r}")
        return self._store.with_name(f"{self._store.name}.{role}.lock")


def locked(path: Path) -> int | None:
    """A descriptor that holds the lock of a file until it is closed; None if another has it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return descriptor
            os.close(descriptor)  # it was removed meanwhile: others lock the file that is there now
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
