"""Keeping: counts one process's references to blobs in a shared folder.

A blob is pinned from its writing until its last reference is dropped. With `discard` it is then
removed, unless another process needs it. Tensors that came as a blob are sent on as that blob.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from ..proto import federation_pb2 as pb
from ..workload import Payload
from .blobs.blob import Blob
from .blobs.store import BlobStore
from .messages import blob_message, blob_of, done_message, payload_of
from .payloads import header_json


class BlobTensors(dict[str, npt.NDArray[Any]]):
    """The tensors of a blob, by name; the blob is kept as long as this object is used."""

    def __init__(self, tensors: Mapping[str, npt.NDArray[Any]], blob: Blob) -> None:
        super().__init__(tensors)
        self.blob = blob


class Keeping:
    """Counts each blob's references; thread-safe."""

    def __init__(self, store: BlobStore, *, discard: bool) -> None:
        self.store = store
        self._discard = discard
        self._needed: Counter[str] = Counter()
        self._read: Counter[str] = Counter()
        """References that tensors in use have."""
        self._lock = threading.Lock()

    def keep(self, payload: Payload) -> pb.Done:
        """Write a payload's blob and add a reference; return the payload's message. BadPayload."""
        tensors = payload.tensors
        if isinstance(tensors, BlobTensors) and self.keep_again(tensors.blob.digest):
            header = header_json(payload.header)
            return pb.Done(kind=payload.kind, header_json=header, blob=blob_message(tensors.blob))
        while True:
            done = done_message(payload, self.store)
            # Another process may remove it between writing and pin.
            if not done.blob.digest or self.keep_again(done.blob.digest):
                return done

    def read(self, done: pb.Done, on_unused: Callable[[str], object]) -> Payload:
        """Read an answer, and keep its blob until its tensors are no longer used.

        `on_unused` gets the digest then, and has to arrange a call of `unused`. It must not call
        `unused` itself: garbage collection calls it, while this thread may hold the lock.
        BadPayload, BadMessage.
        """
        payload, blob = payload_of(done, self.store), blob_of(done.blob)
        if blob is None or not self.keep_again(blob.digest):
            return payload
        with self._lock:
            self._read[blob.digest] += 1
        tensors = BlobTensors(payload.tensors, blob)
        weakref.finalize(tensors, on_unused, blob.digest).atexit = False
        return replace(payload, tensors=tensors)

    def unused(self, digest: str) -> None:
        """Drop the reference that tensors of `read` had."""
        with self._lock:
            known = self._read[digest] > 0
            self._read[digest] -= known
        if known:
            self.let_go(digest)

    def close(self) -> None:
        """Drop the references of all tensors of `read`, also of those still in use."""
        for digest, count in list(self._read.items()):
            for _ in range(count):
                self.unused(digest)

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
