"""Blobs of a test's own bytes, and how they get into a store."""

from __future__ import annotations

import hashlib
import os

from fedpilot.mediator.wire.blobs.blob import Blob
from fedpilot.mediator.wire.blobs.store import BlobStore


def blob_of(data: bytes) -> Blob:
    return Blob(hashlib.sha256(data).hexdigest(), len(data))


def put(store: BlobStore, data: bytes, used_at: int | None = None) -> Blob:
    """A blob of these bytes in the store, last used at a time of the tests' own."""
    aside = store.folder / "aside"
    aside.write_bytes(data)
    blob = store.adopt(aside)
    if used_at is not None:
        os.utime(store.path(blob.digest), (used_at, used_at))
    return blob
