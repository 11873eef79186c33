"""ClientStates: what clients keep between rounds, one row per client and round in an SQLite file.

A round's cost depends on its cohort, not on the population. If the process dies, a call's states
are complete or absent. Nothing is fsynced: checksums detect states that a power cut corrupts.
"""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as from_bytes, save as to_bytes

from ..core.state import State
from ..errors import RunRefused

FORMAT = 1
CACHE_BYTES = 64 << 20
PAGE_BYTES = 16 << 10
"""States of tens of kilobytes span few such pages: half the time of SQLite's 4 KiB."""
NONE_COMMITTED = -1

SCHEMA = f"""
    CREATE TABLE states (
        client INTEGER NOT NULL,
        round INTEGER NOT NULL,
        checksum INTEGER NOT NULL,
        tensors BLOB NOT NULL,
        UNIQUE (client, round)
    );
    CREATE INDEX states_by_round ON states (round);
    CREATE TABLE progress (committed INTEGER NOT NULL);
    INSERT INTO progress VALUES ({NONE_COMMITTED});
    PRAGMA user_version = {FORMAT};
"""

SAVE = """
    INSERT INTO states VALUES (?, ?, ?, ?) ON CONFLICT (client, round)
    DO UPDATE SET checksum = excluded.checksum, tensors = excluded.tensors
"""
NEWEST = """
    SELECT round, checksum, tensors FROM states WHERE client = ? AND round < ?
    ORDER BY round DESC LIMIT 1
"""
DROP_SUPERSEDED = """
    DELETE FROM states WHERE rowid IN (
        SELECT old.rowid FROM states AS new
        JOIN states AS old ON old.client = new.client AND old.round < new.round
        WHERE new.round > ? AND new.round <= ?
    )
"""


class ClientStates:
    """One site's clients; rounds count from 0. Methods may be called from any thread."""

    def __init__(self, path: Path | None, *, cache_bytes: int = CACHE_BYTES) -> None:
        """Open or make the file; without a path, a temporary one that ends with this object.

        `cache_bytes` bounds pages in memory. Raises RunRefused for an unreadable file or format.
        """
        self._name = "a temporary file" if path is None else str(path)
        self._lock = threading.RLock()
        with self._explained():
            self._file = sqlite3.connect(path or "", check_same_thread=False, isolation_level=None)
        try:
            with self._explained():
                self._committed = self._prepared(cache_bytes)
        except BaseException:
            self._file.close()
            raise

    def load(self, indices: Iterable[int], round_number: int) -> dict[int, State]:
        """The newest state of each client that was saved before this round, if there is one.

        Raises RunRefused for a corrupt state, or if `commit` dropped states this old.
        """
        found: dict[int, State] = {}
        with self._lock, self._explained():
            self._refuse_before(round_number - 1)
            for index in map(int, indices):
                row = self._file.execute(NEWEST, (index, round_number)).fetchone()
                if row is not None:
                    found[index] = self._decoded(index, *row)
        return found

    def save(self, round_number: int, states: Mapping[int, State]) -> None:
        """Replace the states of a round."""
        with self._transaction():
            self._file.executemany(SAVE, _rows(round_number, states))

    def forget_after(self, round_number: int) -> None:
        """Drop states after the round to resume; RunRefused if `commit` dropped that time."""
        with self._transaction():
            self._refuse_before(round_number)
            self._file.execute("DELETE FROM states WHERE round > ?", (round_number,))

    def commit(self, round_number: int) -> None:
        """Drop each client's states up to this round except the newest.

        A run that resumes at the end of `round_number` or later does not need them.
        """
        with self._lock:
            if round_number <= self._committed:
                return
            with self._transaction():
                self._file.execute(DROP_SUPERSEDED, (self._committed, round_number))
                self._file.execute("UPDATE progress SET committed = ?", (round_number,))
            self._committed = round_number

    def copy(self, path: Path) -> None:
        """Write everything to another file, without half-done writes of a dead process."""
        with self._lock, self._explained(), closing(sqlite3.connect(path)) as other:
            self._file.backup(other)

    def close(self) -> None:
        """Close the file; may be called twice."""
        with self._lock:
            self._file.close()

    # -- inside -------------------------------------------------------------------------------

    def _prepared(self, cache_bytes: int) -> int:
        """Set up the file and its tables; returns the last committed round."""
        self._file.executescript(
            f"""
            PRAGMA page_size = {PAGE_BYTES};
            PRAGMA journal_mode = PERSIST;
            PRAGMA synchronous = OFF;
            PRAGMA cache_size = -{max(1, cache_bytes >> 10)};
            """
        )
        (found,) = self._file.execute("PRAGMA user_version").fetchone()
        (tables,) = self._file.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if tables == 0:
            self._file.executescript(f"BEGIN IMMEDIATE; {SCHEMA} COMMIT;")
        elif found != FORMAT:
            raise RunRefused(
                f"{self._name} holds client states of format {found}; this version reads "
                f"format {FORMAT}"
            )
        (committed,) = self._file.execute("SELECT committed FROM progress").fetchone()
        return int(committed)

    def _decoded(self, index: int, round_number: int, checksum: int, tensors: bytes) -> State:
        try:
            if zlib.crc32(tensors) == checksum:
                return from_bytes(tensors)
            reason = "its checksum does not fit"
        except SafetensorError as error:
            reason = str(error)
        raise RunRefused(
            f"the state that client {index} was left with by round {round_number} is spoilt in "
            f"{self._name}: {reason}"
        )

    def _refuse_before(self, round_number: int) -> None:
        if round_number < self._committed:
            raise RunRefused(
                f"the states of clients after round {round_number} are asked for, and those up to "
                f"round {self._committed} were dropped from {self._name}"
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, self._explained():
            self._file.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._file.execute("COMMIT")
            except BaseException:
                if self._file.in_transaction:
                    self._file.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise RunRefused(f"{self._name} cannot be used as client states: {error}") from error


class ClientMemory:
    """Clients' states over the rounds of a run, in the one file that its orders name."""

    def __init__(self) -> None:
        self._open: tuple[Path, ClientStates] | None = None

    def of_round(self, path: Path, round_number: int, oldest_checkpoint: int) -> ClientStates:
        """The states that a round begins with; RunRefused if the file lacks them."""
        if self._open is None or self._open[0] != path:
            self.close()
            states = ClientStates(path)
            # Rows of this very round may belong to clients that the journal counts as done.
            states.forget_after(round_number)
            self._open = path, states
        states = self._open[1]
        if oldest_checkpoint > 0:
            states.commit(oldest_checkpoint)
        return states

    def load(self, index: int, round_number: int) -> dict[int, State]:
        """What a client kept before a round, by its index; empty before any round was trained."""
        return {} if self._open is None else self._open[1].load([index], round_number)

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._open is not None:
            self._open[1].close()


def _rows(round_number: int, states: Mapping[int, State]) -> Iterator[tuple[int, int, int, bytes]]:
    for index, state in states.items():
        tensors = to_bytes({name: np.asarray(a, order="C") for name, a in state.items()})
        yield int(index), round_number, zlib.crc32(tensors), tensors
