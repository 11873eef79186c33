"""StoreFile: one SQLite file, opened or created, and its transactions.

A commit survives the death of any process. A durable one also survives a power cut: in WAL mode
SQLite then syncs the log at each commit (https://www.sqlite.org/pragma.html#pragma_synchronous).
Other commits survive a power cut once a durable one follows.

Each `StoreFile` has one connection, which any thread may use: a lock admits one transaction at a
time. A connection per call would cost more than the call itself (it checkpoints the log and removes
it each time that the last one closes), and one per thread would stay open in each thread of a pool.
The connection does not survive a fork: a child process opens the file itself.
"""

from __future__ import annotations

import os
import pwd
import random
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedpilot.common.host.folders import make_folder, state_home
from fedpilot.common.host.whole_files import sync

from ...errors import StoreUnusable

APPLICATION = 0x66705243
"""Marks the file as a store of Ray clusters ("fpRC", `PRAGMA application_id`)."""
FORMAT = 1
BUSY_S = 10.0
"""How long to wait for another process's transaction."""
MOST_EVENTS = 1_000
"""Events kept of a Ray cluster; the oldest go."""
MOST_REMOVED = 1_000
"""Removed declarations whose uids are remembered."""

_SCHEMA = f"""
CREATE TABLE declarations (
    uid TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, document TEXT NOT NULL,
    revision INTEGER NOT NULL, by TEXT NOT NULL, at REAL NOT NULL, deleted INTEGER NOT NULL
);
CREATE TABLE removed (uid TEXT PRIMARY KEY, revision INTEGER NOT NULL);
CREATE TABLE machines (
    uid TEXT, name TEXT, what TEXT NOT NULL, PRIMARY KEY (uid, name)
) WITHOUT ROWID;
CREATE TABLE memory (uid TEXT PRIMARY KEY, what TEXT NOT NULL);
CREATE TABLE status (uid TEXT PRIMARY KEY, what TEXT NOT NULL);
CREATE TABLE events (
    uid TEXT, id INTEGER, at REAL NOT NULL, kind TEXT NOT NULL, machine TEXT, reason TEXT NOT NULL,
    PRIMARY KEY (uid, id)
) WITHOUT ROWID;
CREATE TABLE leases (role TEXT PRIMARY KEY, fence INTEGER NOT NULL, holder TEXT NOT NULL);
CREATE TABLE counter (
    revision INTEGER NOT NULL, declared INTEGER NOT NULL, forgotten INTEGER NOT NULL
);
INSERT INTO counter VALUES (0, 0, 0);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
"""
"""`counter` has one row, with the numbers of the last change, of the last change of a declaration,
and of the last removal whose uid is forgotten."""


def default_store() -> Path:
    """The store of this user on this computer."""
    return state_home() / "ray-clusters" / "declared.sqlite"


class StoreFile:
    """One connection to the file, for all threads of this process."""

    def __init__(self, path: Path, *, busy_s: float = BUSY_S) -> None:
        """Open the file, or create it with its folder, for this user alone. StoreUnusable."""
        self.path = path.absolute()
        self._lock = threading.Lock()
        with self._explained():
            make_folder(self.path.parent)
            self._check_folder()
            self._identity = self._made()
            self._connection = sqlite3.connect(
                f"{self.path.as_uri()}?mode=rw",
                uri=True,
                timeout=busy_s,
                isolation_level=None,
                check_same_thread=False,
            )
        try:
            with self._explained():
                self._prepare()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """All reads inside see the same state. StoreUnusable."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """All writes inside are made, or none if the block raises. StoreUnusable."""
        with self._transaction("BEGIN IMMEDIATE", "FULL" if durable else "NORMAL") as connection:
            yield connection

    def close(self) -> None:
        """Close the connection; may be called twice."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _transaction(self, begin: str, synchronous: str = "") -> Iterator[sqlite3.Connection]:
        with self._lock, self._explained():
            self._check_identity()
            if synchronous:
                self._connection.execute(f"PRAGMA synchronous = {synchronous}")
            self._connection.execute(begin)
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):  # some errors have ended the transaction already
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    # -- opening ----------------------------------------------------------------------------------

    def _check_folder(self) -> None:
        owner = self.path.parent.stat().st_uid
        if owner not in (os.geteuid(), 0):
            self._refuse_other_user("its folder", owner)

    def _made(self) -> tuple[int, int]:
        """Create the file if there is none, and return its identity.

        It is never opened but by SQLite: closing another descriptor would drop SQLite's locks in
        this process (https://www.sqlite.org/howtocorrupt.html, section 2.2).
        """
        with suppress(FileExistsError):
            os.mknod(self.path, stat.S_IFREG | 0o600)
            sync(self.path.parent)
        found = self.path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise StoreUnusable(str(self.path), "it is no file")
        if found.st_uid != os.geteuid():
            self._refuse_other_user("it", found.st_uid)
        if found.st_mode & 0o077:
            self.path.chmod(0o600)
        return found.st_dev, found.st_ino

    def _refuse_other_user(self, what: str, owner: int) -> None:
        raise StoreUnusable(
            str(self.path), f"{what} belongs to {_user(owner)}, and you are {_user(os.geteuid())}"
        )

    def _prepare(self) -> None:
        """Create the tables, or check the format; another process may do the same."""
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                if not self._is_ours():
                    self._connection.execute("PRAGMA journal_mode = WAL")
                    self._connection.execute("BEGIN IMMEDIATE")
                    if not self._is_ours():
                        for statement in _SCHEMA.split(";"):
                            self._connection.execute(statement)
                    self._connection.execute("COMMIT")
                return
            except sqlite3.OperationalError as error:
                # Beside another connection SQLite refuses to change the journal mode at once,
                # despite its timeout (https://www.sqlite.org/rescode.html#busy).
                self._roll_back()
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(random.uniform(0.001, 0.02))

    def _is_ours(self) -> bool:
        """False: the file is empty. StoreUnusable if it is another's, or of another format."""
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if not tables and not application and not version:
            return False
        if application != APPLICATION:
            raise StoreUnusable(str(self.path), "it is a database of another program")
        if version != FORMAT:
            newer = "; a newer fedpilot wrote it: use that version" if version > FORMAT else ""
            raise StoreUnusable(
                str(self.path),
                f"it is of format {version}, and this version reads format {FORMAT}{newer}",
            )
        return True

    # -- errors -----------------------------------------------------------------------------------

    def _check_identity(self) -> None:
        """A deleted file would take writes that are never found again."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            raise StoreUnusable(str(self.path), "it was removed while it was open") from None
        if (found.st_dev, found.st_ino) != self._identity:
            raise StoreUnusable(str(self.path), "it was replaced by another file while it was open")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreUnusable(str(self.path), self._reason(error)) from error
        except OSError as error:
            where = "" if error.filename in (None, str(self.path)) else f"{error.filename}: "
            reason = f"{where}{error.strerror or error}"
            raise StoreUnusable(str(self.path), reason) from error

    def _reason(self, error: sqlite3.Error) -> str:
        match getattr(error, "sqlite_errorcode", 0) & 0xFF:
            case sqlite3.SQLITE_FULL:
                return "its disk is full"
            case sqlite3.SQLITE_NOTADB:
                return "it is no SQLite database"
            case sqlite3.SQLITE_CORRUPT:
                return f"it is damaged: {error}"
            case sqlite3.SQLITE_BUSY:
                return "another process holds it; try again"
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN:
                folder = self.path.parent
                if not os.access(folder, os.W_OK):
                    return f"{folder} cannot be written to: {error}"
        return str(error)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
