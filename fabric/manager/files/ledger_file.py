"""LedgerFile: one Ray cluster's state on disk, saved before a decision is reported or acted on.

It is an SQLite file with a row for each record. `save` writes all changes in one transaction. There
is no fsync: the file survives the death of any process, but not a power cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ...core.cluster_state import ClusterState
from ...core.invariants import broken
from ...core.ledger import Ledger
from ...core.places.groups import PlacementGroupRecord
from ...core.records import ClusterId, Machine, PlacedCluster, Use, VNode, WorkId
from ...errors import FabricError
from . import ledger_rows as rows

FORMAT, WITH_QUEUES = 1, 2
"""The formats. A ledger gets the second once a file of queues is applied, which older versions do
not know: they would let in everybody."""
QUEUES = "queues"
"""The note with the file of queues."""
SESSION = "session"
"""The note with the session of Ray whose placement groups it has."""
RESTORE = "restore"
"""The note whether virtual clusters of an earlier session are still to be asked for again."""
OWN_POLL_S = 0.02
TABLES = ("machines", "clusters", "vnodes", "uses", "entries", "groups", "works", "answers")

_SCHEMA = (
    "".join(f"CREATE TABLE {name} (id TEXT PRIMARY KEY, what TEXT NOT NULL);" for name in TABLES)
    + "CREATE TABLE ledger (name TEXT NOT NULL);"
    + f"PRAGMA user_version = {FORMAT};"
)


async def own(path: Path) -> int:
    """Wait until no other process owns a ledger, then own it until this process or the lock ends.

    A killed manager may still answer for a moment: its successor must read those promises too.
    """
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            await asyncio.sleep(OWN_POLL_S)
    except BaseException:
        os.close(lock)
        raise


class LedgerFile:
    """One file; it belongs to one process at a time (`own`)."""

    def __init__(self, path: Path | None) -> None:
        """Open or create the file; in memory without a path. FabricError if it is no ledger."""
        self._name = "a ledger in memory" if path is None else str(path)
        self.closed = False
        """Whether the file was closed, by `close` or by a failed write."""
        with self._explained():
            self._file = sqlite3.connect(path or ":memory:", isolation_level=None)
        try:
            with self._explained():
                self._prepare()
                (self.name,) = self._file.execute("SELECT name FROM ledger").fetchone()
                """A random part of our placement groups' names, unique to this ledger."""
        except BaseException:
            self._file.close()
            raise

    def load(self) -> ClusterState:
        """The cluster state as it was last saved."""
        with self._explained():
            tables = {name: self._rows(name) for name in TABLES}
        ledger = Ledger.restored(
            machines=[rows.read(Machine, row, id=id) for id, row in tables["machines"].items()],
            clusters=[rows.read(PlacedCluster, r, id=id) for id, r in tables["clusters"].items()],
            vnodes=[rows.read(VNode, row, id=id) for id, row in tables["vnodes"].items()],
            loans=[loan for id, row in tables["vnodes"].items() for loan in rows.loans(id, row)],
            uses={WorkId(id): rows.read(Use, row) for id, row in tables["uses"].items()},
        )
        if wrong := broken(ledger):
            raise FabricError(f"{self._name} does not add up: {wrong[0]}")
        order = sorted(tables["entries"].items(), key=lambda row: int(row[1]["asked"]))
        state = ClusterState(
            ledger,
            [rows.entry(id, row) for id, row in order],
            [rows.read(PlacementGroupRecord, row, id=id) for id, row in tables["groups"].items()],
            sorted(
                (rows.work(*row) for row in tables["works"].items()), key=lambda work: work.number
            ),
            order={ClusterId(id): int(row["asked"]) for id, row in order},
        )
        for key, ended in tables["answers"].items():
            state.answer(key, tuple(ended["ended"]))
        state.changed_answers.clear()
        return state

    def save(self, state: ClusterState, notes: Mapping[str, Any] | None = None) -> None:
        """Write what has changed in this same object since the last save, with the notes."""
        ledger, changes = state.ledger, state.ledger.changes()
        with self._explained():
            self._file.execute("BEGIN IMMEDIATE")
            try:
                self._write("machines", changes.machines, ledger.machines)
                self._write("clusters", changes.clusters, ledger.clusters)
                vnode_row = partial(rows.vnode_row, ledger)
                self._write("vnodes", changes.vnodes, ledger.vnodes, vnode_row)
                self._write("uses", changes.works, ledger.uses)
                entry_row = partial(rows.entry_row, state.order)
                entries = state.changed_entries.take()
                self._write("entries", entries, state.entries, entry_row)
                self._write("groups", state.groups.changed.take(), state.groups)
                self._write("works", state.works.changed.take(), state.works)
                answers = state.changed_answers.take()
                self._write("answers", answers, state.answers, lambda ended: {"ended": ended})
                for name, what in (notes or {}).items():
                    self.write_note(name, what)
                if notes and QUEUES in notes:
                    self._file.execute(f"PRAGMA user_version = {WITH_QUEUES}")
                self._file.execute("COMMIT")
            except BaseException:
                self.close()  # unsaved decisions must not be reported: the file is loaded again
                raise

    def note(self, name: str) -> Any:
        """The note under a name, beside the cluster state; None if there is none."""
        with self._explained():
            found = self._file.execute("SELECT what FROM notes WHERE id = ?", (name,)).fetchone()
        return None if found is None else json.loads(found[0])

    def write_note(self, name: str, what: Any) -> None:
        """Write a note, which is not part of the cluster state."""
        values = name, json.dumps(what)
        with self._explained():
            self._file.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", values)

    def follow(self, session: str) -> bool:
        """Take the ledger over for a session of Ray; whether an earlier one's is to be restored.

        What an earlier session held has ended with it. The notes stay, such as the queues. The
        answer is the same until `restored`.
        """
        before = self.note(SESSION)
        if before != session:
            with self._explained():
                self._file.execute("BEGIN IMMEDIATE")
                if before is not None:
                    for table in TABLES:
                        self._file.execute(f"DELETE FROM {table}")
                self.write_note(SESSION, session)
                self.write_note(RESTORE, before is not None)
                self._file.execute("COMMIT")
        return bool(self.note(RESTORE))

    def restored(self) -> None:
        """Note that what an earlier session held has been asked for again."""
        self.write_note(RESTORE, False)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self.closed = True
        self._file.close()

    def _rows(self, table: str) -> dict[str, Any]:
        found = self._file.execute(f"SELECT id, what FROM {table}")
        return {id: json.loads(what) for id, what in found}

    def _prepare(self) -> None:
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute("PRAGMA synchronous = OFF")
        (version,) = self._file.execute("PRAGMA user_version").fetchone()
        (tables,) = self._file.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not version and not tables:
            name = secrets.token_hex(6)
            self._file.executescript(
                f"BEGIN; {_SCHEMA} INSERT INTO ledger VALUES ('{name}'); COMMIT;"
            )
        elif version not in (FORMAT, WITH_QUEUES):
            raise FabricError(
                f"{self._name} is no ledger of format {FORMAT} or {WITH_QUEUES}, which this "
                f"version reads, but of format {version}"
            )
        # Older files lack this table, and older versions ignore it.
        self._file.execute("CREATE TABLE IF NOT EXISTS notes (id TEXT PRIMARY KEY, what TEXT)")

    def _write(
        self,
        table: str,
        changed: Iterable[str],
        now: Any,
        row: Callable[[Any], Mapping[str, Any]] = rows.row,
    ) -> None:
        gone = [(id,) for id in changed if id not in now]
        there = [(id, rows.text(row(now[id]))) for id in changed if id in now]
        if gone:
            self._file.executemany(f"DELETE FROM {table} WHERE id = ?", gone)
        if there:
            self._file.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", there)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise FabricError(f"{self._name} cannot be used as a ledger: {error}") from error
