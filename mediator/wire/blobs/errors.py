"""The errors of blobs and their store."""

from __future__ import annotations

from ...errors import MediatorError


class BadBlob(MediatorError):
    """Bytes do not match the announced blob, or its name is invalid."""


class BlobBusy(MediatorError):
    """Another writer is writing the blob."""


class NoRoom(MediatorError):
    """A blob does not fit into the store beside what is pinned."""


class NoRoomOnDisk(NoRoom):
    """The store's limit would allow the blob, but its disk has no room."""
