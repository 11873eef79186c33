"""PartialBlob: receives a blob's bytes into a file and checks them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from .blob import Blob
from .errors import BadBlob, BlobBusy

_BLOCK = 1 << 20
"""Bytes that are read and hashed at a time; they fit into a processor's cache."""


class PartialBlob:
    """A blob on its way into a store; one writer at a time, in any thread."""

    def __init__(
        self,
        blob: Blob,
        path: Path,
        file: int,
        *,
        complete: Callable[[], Path],
        left: Callable[[], None],
    ) -> None:
        """Continue an open, locked file; hashes what is there.

        `complete` gives the file the blob's name; `left` is called when writing ends.
        """
        self.blob = blob
        self._path, self._file = path, file
        self._complete, self._left = complete, left
        self._lock = threading.Lock()
        self.closed = False
        """Whether it takes no more bytes."""
        self._hash = hashlib.sha256()
        self.size = 0
        """Bytes so far, which is the offset of the next write."""
        if os.fstat(file).st_size > blob.size:
            os.ftruncate(file, 0)
        block = bytearray(_BLOCK)
        while count := os.readv(file, [block]):
            self._hash.update(memoryview(block)[:count])
            self.size += count

    def write(self, *data: bytes | memoryview) -> None:
        """Append; BadBlob beyond the blob's size, BlobBusy once closed."""
        for each in data:
            with self._lock:
                self._write(memoryview(each))

    def _write(self, rest: memoryview) -> None:
        if self.closed:
            raise BlobBusy(f"blob {self.blob.digest} is no longer written here")
        if self.size + len(rest) > self.blob.size:
            raise BadBlob(
                f"blob {self.blob.digest} has {self.blob.size} bytes, and {len(rest)} more"
                f" came after {self.size}"
            )
        self._hash.update(rest)
        while rest:
            written = os.write(self._file, rest)
            self.size += written
            rest = rest[written:]

    def finish(self) -> Path:
        """Complete the blob and return its path; BadBlob, with the part removed, if it is wrong."""
        with self._lock:
            if self.closed:
                raise BlobBusy(f"blob {self.blob.digest} is no longer written here")
            found = self._hash.hexdigest()
            if (found, self.size) == (self.blob.digest, self.blob.size):
                # From a writer's lock to a reader's, which is compatible with a pin's.
                fcntl.flock(self._file, fcntl.LOCK_SH)
                path = self._complete()
                self._close()
                return path
            self._path.unlink(missing_ok=True)
            self._close()
        raise BadBlob(
            f"blob {self.blob.digest} has {self.blob.size} bytes; what came are {self.size} bytes"
            f" with the digest {found}"
        )

    def close(self) -> None:
        """Leave the part to the next writer; may be called twice."""
        with self._lock:
            if not self.closed:
                self._close()

    def _close(self) -> None:
        self.closed = True
        self._left()
        os.close(self._file)
