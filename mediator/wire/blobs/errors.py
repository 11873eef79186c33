"""What can be wrong with a blob, or with the store that it is to go into."""

from __future__ import annotations

from ...errors import MediatorError


class BadBlob(MediatorError):
    """Bytes that are not the blob they were said to be."""


class BlobBusy(MediatorError):
    """Somebody else is writing that blob at the moment."""


class NoRoom(MediatorError):
    """A blob does not fit into the store, beside what is pinned there."""


class NoRoomOnDisk(NoRoom):
    """The store may hold it, but the disk has no room for it now."""
