"""Keeping: the blobs that one process needs in a folder that it shares with others.

A blob is pinned from its writing until as many have let it go as need it. Where the folder serves
one run only (`discard`), it is removed then, unless another process needs the same one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Protocol, TypeVar

from ...proto import federation_pb2 as pb
from .store import BlobStore


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
        self._lock = threading.Lock()

    def keep(self, write: Callable[[BlobStore], Message]) -> Message:
        """Write a message's blob, and keep it until it was let go once more."""
        while True:
            message = write(self.store)
            # Another process may have removed it between its writing and its pin.
            if not message.blob.digest or self.keep_again(message.blob.digest):
                return message

    def keep_again(self, digest: str) -> bool:
        """Need a blob once more; whether it is there."""
        with self._lock:
            self.store.pin(digest)
            self._needed[digest] += 1
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
                self.store.remove(digest)
