"""ReplyBlobs: keeps the tensors of a coordinator's replies until the mediator has read them.

The mediator reads a reply's blob soon, so only the latest stay, fewer if they are large.
"""

from __future__ import annotations

import threading
from collections import deque

from ..proto import federation_pb2 as pb
from ..wire.references import Keeping
from ..workload import Payload

MOST, MOST_BYTES = 64, 1 << 30
"""The most blobs that stay, and their bytes."""
FEWEST = 16
"""Blobs that stay regardless of their size."""


class ReplyBlobs:
    """The blobs of the last replies; thread-safe."""

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping
        self._lock = threading.Lock()
        self._last: deque[pb.Blob] = deque()

    def keep(self, payload: Payload) -> pb.Done:
        """Write a reply's blob, and keep it for the mediator."""
        done = self._keeping.keep(payload)
        if done.blob.digest:
            over: list[str] = []
            with self._lock:
                self._last.append(done.blob)
                while self._too_many():
                    over.append(self._last.popleft().digest)
            for digest in over:
                self._keeping.let_go(digest)
        return done

    def _too_many(self) -> bool:
        if len(self._last) <= FEWEST:
            return False
        return len(self._last) > MOST or sum(blob.size for blob in self._last) > MOST_BYTES
