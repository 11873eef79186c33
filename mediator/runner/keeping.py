"""Keeping: the blobs that one process needs in a folder that it shares with others.

A blob is pinned from its writing until as many have let it go as need it. Where the folder serves
one run only (`discard`), it is removed then, unless another process needs the same one.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from ..blobs import BlobStore
from ..proto import federation_pb2 as pb

LOCK = ".keeping"


class HasBlob(Protocol):
    """A message that names a blob, or none."""

    @property
    def blob(self) -> pb.Blob: ...


Message = TypeVar("Message", bound=HasBlob)


class Keeping:
    """Counts who needs which blob; may be used from any thread."""

    def __init__(self, store: BlobStore, *, discard: bool) -> None:
        self.store = store
        self._discard = discard
        self._needed: Counter[str] = Counter()
        self._stale: set[str] = set()
        """What nobody needs any more here and could not be removed yet."""
        self._lock = threading.Lock()

    def keep(self, write: Callable[[BlobStore], Message]) -> Message:
        """Write a message's blob, and keep it until it was let go once more."""
        # Between its writing and its pin nobody may remove it.
        with _folder_locked(self.store, fcntl.LOCK_SH):
            message = write(self.store)
            if message.blob.digest:
                self._need(message.blob.digest)
        return message

    def keep_again(self, digest: str) -> bool:
        """Need a blob once more; whether it is there."""
        self._need(digest)
        if self.store.size(digest) is not None:
            return True
        self.let_go(digest)
        return False

    def let_go(self, digest: str) -> None:
        """Somebody needs a blob no more."""
        with self._lock:
            self.store.unpin(digest)
            self._needed[digest] -= 1
            if self._needed[digest]:
                return
            del self._needed[digest]
            if self._discard:
                self._stale.add(digest)
                self._remove_stale()

    def _need(self, digest: str) -> None:
        with self._lock:
            self.store.pin(digest)
            self._needed[digest] += 1
            self._stale.discard(digest)

    def _remove_stale(self) -> None:
        """Remove what is stale, or leave it for later where somebody is writing."""
        with (
            suppress(BlockingIOError, FileNotFoundError),
            _folder_locked(self.store, fcntl.LOCK_EX | fcntl.LOCK_NB),
        ):
            for digest in self._stale:
                _remove(self.store.path(digest))
            self._stale.clear()


@contextmanager
def _folder_locked(store: BlobStore, how: int) -> Iterator[None]:
    """Hold a lock of all processes that keep blobs in a folder."""
    file = os.open(store.folder / LOCK, os.O_RDONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, how)
        yield
    finally:
        os.close(file)


def _remove(path: Path) -> None:
    """Remove a blob that no process has pinned: pins are shared locks."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return
    finally:
        os.close(file)
