"""BlobStore: a folder of files named by the SHA-256 of their bytes, within a size limit.

It also leaves room on its disk (`core/storage/disk.py`). A file named by its digest is complete and
checked. `<digest>.part` is incomplete: its writer locks it, and a later process continues it.
Unpinned blobs make room for new ones, least recently used first. Pins and parts are file locks.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedpilot.common.text.amounts import in_bytes

from ...core.storage.disk import Space
from .blob import Blob, check_digest, digest_of, is_digest
from .errors import BadBlob, NoRoom, NoRoomOnDisk
from .file_locks import locked, names_held, remove_unused
from .full_disk import space_of
from .part import PartialBlob

_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class BlobStore:
    """Blobs in one folder, `limit_bytes` at most; thread-safe."""

    def __init__(
        self, folder: Path, limit_bytes: int, *, space: Callable[[Path], Space] | None = None
    ) -> None:
        """`space` gives the disk space of a folder."""
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._space = space or space_of
        self._lock = threading.RLock()
        self._pins: Counter[str] = Counter()
        self._held: dict[str, int] = {}
        """Open, locked files of the pinned blobs that exist."""
        self._parts: dict[Path, int] = {}
        """The final sizes of the parts being written here."""
        self._spare = 0
        """Bytes that may be used before the folder is examined again."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """The path of a complete blob; BadBlob for an invalid digest."""
        check_digest(digest)
        return self.folder / digest

    def size(self, digest: str) -> int | None:
        """Size of a complete blob, which is marked as used now; None if it is absent."""
        path = self.path(digest)
        with self._lock:
            self._hold(digest)
            try:
                os.utime(path)
                return path.stat().st_size
            except FileNotFoundError:
                return None

    def has(self, blob: Blob) -> bool:
        """Whether the blob is there; removes a file of its name with another size."""
        size = self.size(blob.digest)
        if size is not None and size != blob.size:
            # The machine died before the bytes reached the disk.
            with names_held(self.folder), suppress(FileNotFoundError):
                if self.path(blob.digest).stat().st_size != blob.size:
                    self.path(blob.digest).unlink()
            return False
        return size is not None

    def under_way(self, blob: Blob, owner: str = "") -> int:
        """Bytes of an incomplete blob, from which a new part would continue."""
        try:
            size = self._part(blob, owner).stat().st_size
        except FileNotFoundError:
            return 0
        return size if size <= blob.size else 0

    def open_part(self, blob: Blob, owner: str = "") -> PartialBlob:
        """Continue or begin a blob; blocks, since it reads what is there.

        Owners cannot spoil each other's parts. BlobBusy while that owner's part is open; NoRoom.
        """
        path = self._part(blob, owner)
        with self._lock:
            file = locked(path)
            try:
                self._make_room(blob.size, f"blob {blob.digest}", beside=path)
            except NoRoom:
                os.close(file)
                raise
            self._parts[path] = blob.size
        try:
            return PartialBlob(
                blob,
                path,
                file,
                complete=lambda: self._complete(path, blob),
                left=lambda: self._left(path),
            )
        except BaseException:
            self._left(path)
            os.close(file)
            raise

    def drop_part(self, blob: Blob, owner: str = "") -> None:
        """Remove an incomplete blob, unless a writer has it."""
        remove_unused(self._part(blob, owner))

    def adopt(self, path: Path, blob: Blob | None = None) -> Blob:
        """Move a file of the same file system into the store; without `blob` it is hashed first."""
        blob = blob or Blob(digest_of(path), path.stat().st_size)
        with self._lock:
            self._make_room(blob.size, f"blob {blob.digest}", beside=path)
            self._complete(path, blob)
        return blob

    def remove(self, digest: str) -> bool:
        """Remove a blob unless this or another process has pinned it; return whether it is gone."""
        path = self.path(digest)
        with self._lock:
            return not self._pins[digest] and remove_unused(path)

    def make_room_for(self, nbytes: int) -> None:
        """Remove unpinned blobs until `nbytes` fit; NoRoom if they cannot."""
        with self._lock:
            self._make_room(nbytes, "a new blob", beside=None)

    def give_way(self) -> None:
        """Remove unpinned blobs, least recently used first, until the disk has its free reserve."""
        with self._lock, suppress(NoRoom):
            self._spare = -1  # force an examination
            self._make_room(0, "nothing", beside=None)

    def pin(self, digest: str) -> None:
        """Keep a blob, present or not, until it is unpinned as often."""
        check_digest(digest)
        with self._lock:
            self._pins[digest] += 1
            self._hold(digest)

    def unpin(self, digest: str) -> None:
        """Drop one pin; ValueError if there is none."""
        with self._lock:
            if not self._pins[digest]:
                raise ValueError(f"blob {digest} is not pinned")
            self._pins[digest] -= 1
            if not self._pins[digest]:
                del self._pins[digest]
                held = self._held.pop(digest, None)
                if held is not None:
                    os.close(held)

    @contextmanager
    def pinned(self, digest: str) -> Iterator[None]:
        """Pin a blob within the context."""
        self.pin(digest)
        try:
            yield
        finally:
            self.unpin(digest)

    def clean(self, *, now: float, stale_after_s: float, blobs_too: bool = False) -> int:
        """Remove parts and temporary files older than `stale_after_s`; return the bytes removed.

        `blobs_too` includes unpinned blobs unused for as long. `now` is in epoch seconds.
        """
        removed = 0
        for path, found in self._files():
            half = path.suffix in (".part", ".tmp")
            blob = blobs_too and is_digest(path.name) and not self._pins[path.name]
            if (half or blob) and now - found.st_mtime >= stale_after_s and remove_unused(path):
                removed += found.st_size
        return removed

    def _part(self, blob: Blob, owner: str) -> Path:
        if owner and not _OWNER.fullmatch(owner):
            raise BadBlob(f"{owner[:80]!r} cannot be part of a file's name")
        return self.folder / (f"{blob.digest}.{owner}.part" if owner else f"{blob.digest}.part")

    def _complete(self, path: Path, blob: Blob) -> Path:
        """Give a file its name, unless a whole file has it, which others may have pinned."""
        to = self.path(blob.digest)
        with self._lock, names_held(self.folder):
            if to.exists() and _size(to) == blob.size:
                path.unlink()
            else:
                path.replace(to)
            os.utime(to)
            # A pin's lock may be on the previous file.
            held = self._held.pop(blob.digest, None)
            self._hold(blob.digest)
            if held is not None:
                os.close(held)
        return to

    def _left(self, path: Path) -> None:
        with self._lock:
            self._parts.pop(path, None)

    def _hold(self, digest: str) -> None:
        """Lock a pinned blob's file so that no process removes it."""
        if not self._pins[digest] or digest in self._held:
            return
        while True:
            try:
                file = os.open(self.folder / digest, os.O_RDONLY)
            except FileNotFoundError:
                return
            fcntl.flock(file, fcntl.LOCK_SH)
            if os.fstat(file).st_nlink:
                self._held[digest] = file
                return
            os.close(file)  # removed or replaced between the two calls

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """The folder's files, least recently used first."""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found.append((Path(entry.path), entry.stat(follow_symlinks=False)))
        return sorted(found, key=lambda each: (each[1].st_mtime_ns, each[0]))

    def _make_room(self, needed: int, what: str, *, beside: Path | None) -> None:
        """Make room for `needed` bytes; `beside` is a file that is not counted."""
        if needed > self.limit_bytes:
            raise NoRoom(
                f"{what} has {needed} bytes and {self.folder} may hold {self.limit_bytes}:"
                " raise its limit"
            )
        if needed <= self._spare:
            self._spare -= needed
            return
        sizes = {path: found.st_size for path, found in self._files() if path != beside}
        promised = {path: size for path, size in self._parts.items() if path != beside}
        space = self._space(self.folder)
        unwritten = sum(size - sizes.get(path, 0) for path, size in promised.items())
        unwritten += needed - (_size(beside) if beside else 0)
        sizes |= promised
        on_disk = unwritten + space.kept_free - space.free
        over = sum(sizes.values()) + needed - self.limit_bytes
        # Examining a large folder is slow. Half is left to other processes on the folder.
        self._spare = max(0, -max(over, on_disk) // 2)
        for path, size in sizes.items():
            if max(over, on_disk) <= 0:
                return
            removable = path.suffix == ".part" or is_digest(path.name)
            if removable and not self._pins[path.name] and remove_unused(path):
                over, on_disk = over - size, on_disk - size
        # If nothing can be removed, half of the free reserve may be used. With less than that, the
        # site is in trouble (`core/storage/disk.py`) and gets no orders.
        if on_disk > space.kept_free // 2:
            raise NoRoomOnDisk(
                f"{what} has {needed} bytes, and the disk of {self.folder} has"
                f" {in_bytes(space.free)} free, of which {in_bytes(space.kept_free / 2)} stay free"
            )
        if over > 0:
            raise NoRoom(
                f"{what} has {needed} bytes, {over} more than are free or unpinned of the"
                f" {self.limit_bytes} that {self.folder} may hold"
            )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
