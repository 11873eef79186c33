"""Keeping: counts one process's references to blobs in a shared folder.

A blob is pinned from its writing until its last reference is dropped. With `discard` it is then
removed, unless another process needs it.
"""

from __future__ import annotations

import threading
from collections import Counter

from ..proto import federation_pb2 as pb
from ..workload import Payload
from .blobs.store import BlobStore
from .messages import done_message


class Keeping:
    """Counts each blob's references; thread-safe."""

    def __init__(self, store: BlobStore, *, discard: bool) -> None:
        self.store = store
        self._discard = discard
        self._needed: Counter[str] = Counter()
        self._lock = threading.Lock()

    def keep(self, payload: Payload) -> pb.Done:
        """Write a payload's blob and add a reference; return the payload's message. BadPayload."""
        while True:
            done = done_message(payload, self.store)
            # Another process may remove it between writing and pin.
            if not done.blob.digest or self.keep_again(done.blob.digest):
                return done

    def keep_again(self, digest: str) -> bool:
        """Add a reference to a blob if it is there; return whether it is."""
        with self._lock:
            self.store.pin(digest)
            self._needed[digest] += 1
        if self.store.size(digest) is not None:
            return True
        self.let_go(digest)
        return False

    def let_go(self, digest: str) -> None:
        """Drop a reference to a blob."""
        with self._lock:
            self.store.unpin(digest)
            self._needed[digest] -= 1
            if self._needed[digest]:
                return
            del self._needed[digest]
            if self._discard:
                self.store.remove(digest)
