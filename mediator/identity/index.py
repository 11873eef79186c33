"""CertificateIndex: a file beside an authority's key with the certificates it issued and revoked.

Every change is a line of JSON; the last line of a serial number wins. The index is a file, not a
table of the mediator's database, so that everything the key signs can be revoked. A line is on disk
before its certificate is handed out. Several processes may write; readers see changes at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedpilot.common.host.whole_files import sync

from ..core.rules.roles import Role
from .errors import IdentityError

FORMAT = 1
LOCK_S = 10.0
"""How long a writer waits for the lock; others hold it for milliseconds."""
_POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """An issued certificate. Times are epoch seconds."""

    serial: str
    name: str
    role: Role
    hosts: tuple[str, ...] = ()
    issued_at: float
    expires_at: float
    revoked_at: float | None = None
    """When refusals begin; in the future while its successor is being installed."""

    def state(self, now: float) -> str:
        """Return "valid", "expired" or "revoked"."""
        if self.revoked_at is not None and self.revoked_at <= now:
            return "revoked"
        return "expired" if self.expires_at <= now else "valid"


class CertificateIndex:
    """The index file; safe for threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file_id = 0
        self._read_bytes = 0
        self._entries: dict[str, Issued] = {}

    @classmethod
    def create(cls, path: Path) -> CertificateIndex:
        """Create the file; FileExistsError if it exists."""
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_line({"format": FORMAT}))
            file.flush()
            os.fsync(file.fileno())
        sync(path.parent)
        return cls(path)

    def entries(self) -> Mapping[str, Issued]:
        """The entries by serial number, oldest first; IdentityError if the file is damaged."""
        with self._lock:
            return self._read()

    def change(self, decide: Callable[[Mapping[str, Issued]], Iterable[Issued]]) -> None:
        """Append the entries that `decide` derives from the present ones, under the file's lock."""
        with self._lock, self._writing() as descriptor:
            lines = [_line(asdict(each)) for each in decide(self._read())]
            # Drop the partial line of a writer that died: its certificate was not handed out.
            os.ftruncate(descriptor, self._read_bytes)
            os.pwrite(descriptor, b"".join(lines), self._read_bytes)
            os.fsync(descriptor)

    @contextmanager
    def _writing(self) -> Iterator[int]:
        descriptor = os.open(self._path, os.O_RDWR)
        try:
            deadline = time.monotonic() + LOCK_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise IdentityError(
                            f"{self._path} is locked by another process for {LOCK_S:g} s already"
                        ) from None
                    time.sleep(_POLL_S)
            yield descriptor
        finally:
            os.close(descriptor)

    def _read(self) -> dict[str, Issued]:
        """Read the new lines; skip an unfinished last line."""
        with self._path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._file_id or found.st_size < self._read_bytes:
                self._file_id, self._read_bytes, self._entries = found.st_ino, 0, {}
            if found.st_size == self._read_bytes > 0:
                return self._entries
            file.seek(self._read_bytes)
            whole, end, _ = file.read().rpartition(b"\n")
        entries = dict(self._entries)
        lines = whole.split(b"\n") if end else []
        if not self._read_bytes:
            self._check_format(lines.pop(0) if lines else b"{}")
        for line in lines:
            entry = self._entry(line)
            entries[entry.serial] = entry
        self._entries, self._read_bytes = entries, self._read_bytes + len(whole) + len(end)
        return entries

    def _check_format(self, line: bytes) -> None:
        found = self._parsed(line).get("format")
        if found != FORMAT:
            raise IdentityError(
                f"{self._path} has format {found}; this fedpilot knows format {FORMAT}: "
                "use the version that wrote it, or a later one"
            )

    def _entry(self, line: bytes) -> Issued:
        found = self._parsed(line)
        try:
            role, hosts = Role(found["role"]), tuple(found["hosts"])
            return Issued(**{**found, "role": role, "hosts": hosts})
        except (KeyError, TypeError, ValueError) as error:
            raise IdentityError(f"{self._path} is damaged: {_shown(line)}") from error

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except ValueError as error:
            raise IdentityError(f"{self._path} is damaged: {_shown(line)}") from error
        if not isinstance(found, dict):
            raise IdentityError(f"{self._path} is damaged: {_shown(line)}")
        return found


def _line(what: Mapping[str, Any]) -> bytes:
    return json.dumps(what).encode() + b"\n"


def _shown(line: bytes) -> str:
    return f"one of its lines is {line[:80].decode(errors='replace')!r}"
