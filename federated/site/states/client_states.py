"""ClientStates: what clients keep between rounds.

The states lie in rows of a plain file, each round's side by side where there is room. An SQLite
file beside it says which row is whose, and of which round. A round's cost depends on its cohort,
not on the population. If the process dies, a call's states are complete or absent: rows are
written before the places that name them. Nothing is fsynced: checksums detect states that a power
cut corrupts.
"""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as from_bytes

from ...core.population.sampling import Indices
from ...core.state import State
from ...errors import RunRefused
from .free_space import Offsets
from .layouts import Layout, Stack, as_slice
from .row_file import RowFile, Rows

FORMAT = 2
CACHE_BYTES = 16 << 20
WRITTEN_BYTES = 4 << 20
"""Rows that are prepared and written together; more than one state, if states are small."""
MANY_LAYOUTS = 256
AT_ONCE = 64
"""States of an older file that are read and written together."""
NONE_COMMITTED = -1

SCHEMA = f"""
    CREATE TABLE layouts (layout INTEGER PRIMARY KEY, arrays TEXT NOT NULL UNIQUE);
    CREATE TABLE places (
        client INTEGER NOT NULL,
        round INTEGER NOT NULL,
        layout INTEGER NOT NULL,
        place INTEGER NOT NULL,
        checksum INTEGER NOT NULL,
        PRIMARY KEY (client, round)
    ) WITHOUT ROWID;
    CREATE INDEX places_by_round ON places (round);
    CREATE TABLE IF NOT EXISTS progress (committed INTEGER NOT NULL);
    PRAGMA user_version = {FORMAT};
"""

SAVE = "INSERT OR IGNORE INTO places VALUES (?, ?, ?, ?, ?)"
NEWEST = """
    SELECT layout, place, round, checksum FROM places WHERE client = ? AND round < ?
    ORDER BY round DESC LIMIT 1
"""
OF_ROUND = "SELECT layout, place, round, checksum, client FROM places WHERE round = ?"
WHOSE_SINCE = "SELECT client, round FROM places WHERE round > ?"
OLDER_THAN_ANOTHER = "round = ? AND client IN (SELECT client FROM places WHERE round > ?)"
EARLIER_ROUNDS = "SELECT DISTINCT round FROM places WHERE round < ?"
OF_OTHERS = "round < ? AND client NOT IN (SELECT client FROM here)"
SUPERSEDED = """
    (client, round) IN (
        SELECT old.client, old.round FROM places AS new
        JOIN places AS old ON old.client = new.client AND old.round < new.round
        WHERE new.round > ? AND new.round <= ?
    )
"""


class _Place(NamedTuple):
    """Where a client's state of a round is."""

    layout: int
    place: int
    round_number: int
    checksum: int
    client: int


class ClientStates:
    """One site's clients; rounds count from 0. Methods may be called from any thread."""

    def __init__(self, path: Path | None, *, cache_bytes: int = CACHE_BYTES) -> None:
        """Open or make the files; without a path, temporary ones that end with this object.

        `cache_bytes` bounds the places in memory. Raises RunRefused for a file that cannot be read,
        or is of a later format.
        """
        self._name = "a temporary file" if path is None else str(path)
        self._lock = threading.RLock()
        self._layouts: dict[int, Layout] = {}
        self._numbers: dict[Layout, int] = {}
        self._packed: Layout | None = None
        self._scratch: Rows = np.empty((0, 0), dtype=np.uint8)
        with ExitStack() as undo, self._explained():
            database = path or ""
            self._places = sqlite3.connect(database, check_same_thread=False, isolation_level=None)
            undo.callback(self._places.close)
            self._rows = RowFile(None if path is None else rows_of(path), self._used)
            undo.callback(self._rows.close)
            self._committed = self._prepared(cache_bytes)
            self._files = undo.pop_all()

    def load(self, indices: Iterable[int], round_number: int) -> dict[int, State]:
        """The newest state of each client that was saved before this round, if there is one.

        Raises RunRefused for a corrupt state, or if `commit` dropped states this old.
        """
        states: dict[int, State] = {}
        with self._lock, self._explained():
            for layout, some, rows in self._newest(indices, round_number):
                states.update(zip((each.client for each in some), layout.unpack(rows), strict=True))
        return states

    def load_stack(
        self,
        indices: Indices,
        round_number: int,
        left_by: Indices | None = None,
        *,
        into: Stack | None = None,
        after_each: Callable[[], None] = lambda: None,
    ) -> Stack:
        """States that are alike, as the round before left them, in order.

        They go into the first rows of `into`; `after_each` is called after each part of them.
        `left_by` (k,) is the round that left each client's state, if some sat out since. Raises
        RunRefused if a client has none of that very round, or if they are not alike.
        """
        before = round_number - 1
        rounds = np.full(len(indices), before) if left_by is None else left_by
        with self._lock, self._explained():
            self._refuse_before(before)
            wanted = {int(index): at for at, index in enumerate(indices)}
            found = []
            for number in np.unique(rounds).tolist():
                whose = set(indices[rounds == number].tolist())
                rows = self._places.execute(OF_ROUND, (number,)).fetchall()
                found += [_Place._make(row) for row in rows if row[-1] in whose]
            found.sort()
            if len(found) != len(wanted):
                lacking = f"{len(wanted) - len(found)} of {len(wanted)} clients"
                raise RunRefused(f"{self._name} lacks what {lacking} had after round {before}")
            layout = self._layouts[found[0].layout]
            made = into or Stack.empty(layout, len(wanted))
            if len({each.layout for each in found}) > 1 or made.layout != layout:
                raise RunRefused(f"{self._name} holds states of different shapes")
            most = max(1, WRITTEN_BYTES // layout.length)
            for begin, end in _side_by_side(found, self._length):
                for first in range(begin, end, most):
                    some = found[first : min(first + most, end)]
                    at = as_slice(np.array([wanted[each.client] for each in some]))
                    if isinstance(at, slice):
                        self._read(some, made.rows[at])
                    else:
                        scratch = np.empty((len(some), layout.length), np.uint8)
                        made.rows[at] = self._read(some, scratch)
                    after_each()
            return made.part(slice(0, len(wanted)))

    def save(self, round_number: int, states: Mapping[int, State]) -> None:
        """Replace the states of a round."""
        alike: dict[Layout, tuple[list[int], list[State]]] = {}
        layout = Layout(())
        with self._lock:
            for index, state in states.items():
                if not layout.fits(state):
                    layout = Layout.of(state)
                clients, content = alike.setdefault(layout, ([], []))
                clients.append(int(index))
                content.append(state)
            with self._transaction():
                rows: list[tuple[int, int, int, int, int]] = []
                for layout, (clients, content) in alike.items():
                    written = self._write(layout, content)
                    rows += self._named(round_number, layout, clients, written)
                replaced = self._save_places(rows)
            self._rows.give(*self._parts(replaced))

    def save_stack(
        self, round_number: int, indices: Indices, layout: Layout, parts: Iterable[Stack]
    ) -> None:
        """The same for states that are alike, in the clients' order, in any number of parts."""
        with self._lock:
            with self._transaction():
                places = self._rows.take(len(indices), layout.length)
                checksums: list[int] = []
                for part in parts:
                    first = len(checksums)
                    self._rows.write(part.rows, places[first : first + len(part)])
                    checksums += _checksums(part.rows).tolist()
                written = zip(places.tolist(), checksums, strict=True)
                rows = self._named(round_number, layout, indices.tolist(), [*written])
                replaced = self._save_places(rows)
            self._rows.give(*self._parts(replaced))

    def forget_after(self, round_number: int) -> None:
        """Drop states after the round to resume; RunRefused if `commit` dropped that time."""
        with self._lock:
            with self._transaction():
                self._refuse_before(round_number)
                dropped = self._drop("round > ?", round_number)
            self._rows.give(*self._parts(dropped))

    def commit(self, round_number: int) -> None:
        """Drop each client's states up to this round except the newest.

        A run that resumes at the end of `round_number` or later does not need them.
        """
        with self._lock:
            if round_number <= self._committed:
                return
            with self._transaction():
                dropped = self._parts(self._drop(SUPERSEDED, self._committed, round_number))
                self._places.execute("UPDATE progress SET committed = ?", (round_number,))
                self._drop_layouts()
            self._committed = round_number
            self._rows.give(*dropped)

    def forget_round(self, round_number: int) -> None:
        """Drop what a round left, at whose end no run resumes, to clients with a newer state."""
        with self._lock:
            with self._transaction():
                dropped = self._drop(OLDER_THAN_ANOTHER, round_number, round_number)
            self._rows.give(*self._parts(dropped))

    def forget_rounds_but(self, kept: Collection[int]) -> None:
        """The same of all rounds before the last of those that are kept."""
        with self._lock:
            rows = self._places.execute(EARLIER_ROUNDS, (max(kept, default=0),)).fetchall()
            for (number,) in rows:
                if number not in kept:
                    self.forget_round(number)

    def forget_others(self, indices: Indices, before: int) -> None:
        """Drop what rounds before `before` left to all clients but these, (k,)."""
        with self._lock:
            with self._transaction():
                self._places.execute("CREATE TEMP TABLE here (client INTEGER PRIMARY KEY)")
                here = [(client,) for client in indices.tolist()]
                self._places.executemany("INSERT INTO here VALUES (?)", here)
                dropped = self._drop(OF_OTHERS, before)
                self._places.execute("DROP TABLE here")
            self._rows.give(*self._parts(dropped))

    def forget_uncounted(self, indices: Indices, left_by: Indices) -> None:
        """Drop what clients were left with after the round `left_by`, (k,), by which they go on."""
        last = dict(zip(indices.tolist(), left_by.tolist(), strict=True))
        since = int(left_by.min(initial=0))
        with self._lock:
            with self._transaction():
                rows = self._places.execute(WHOSE_SINCE, (since,)).fetchall()
                own = "client = ? AND round = ?"
                late = [
                    (client, number) for client, number in rows if number > last.get(client, number)
                ]
                dropped = [place for each in late for place in self._drop(own, *each)]
            self._rows.give(*self._parts(dropped))

    def copy(self, path: Path) -> None:
        """Write everything to other files, without half-done writes of a dead process."""
        with self._lock, self._explained(), closing(sqlite3.connect(path)) as other:
            self._rows.copy(rows_of(path))
            self._places.backup(other)

    def close(self) -> None:
        """Close the files; may be called twice."""
        with self._lock:
            self._files.close()

    # -- rows ---------------------------------------------------------------------------------

    def _newest(
        self, indices: Iterable[int], round_number: int
    ) -> Iterator[tuple[Layout, Sequence[_Place], Rows]]:
        """Rows (k, length) of clients' newest states, and whose they are; checked."""
        self._refuse_before(round_number - 1)
        found = []
        for index in map(int, indices):
            row = self._places.execute(NEWEST, (index, round_number)).fetchone()
            if row is not None:
                found.append(_Place._make((*row, index)))
        found.sort()
        for begin, end in _side_by_side(found, self._length):
            some, layout = found[begin:end], self._layouts[found[begin].layout]
            rows = self._read(some, np.empty((len(some), layout.length), dtype=np.uint8))
            yield layout, some, rows

    def _read(self, some: Sequence[_Place], rows: Rows) -> Rows:
        """Read states that lie side by side into rows (k, length); checked."""
        self._rows.read(some[0].place, rows)
        for each, checksum in zip(some, _checksums(rows).tolist(), strict=True):
            if checksum != each.checksum:
                self._refuse(each.client, each.round_number, "its checksum does not fit")
        return rows

    def _write(self, layout: Layout, states: Sequence[State]) -> list[tuple[int, int]]:
        """Write states of one layout; returns the place and the checksum of each."""
        places = self._rows.take(len(states), layout.length)
        written: list[tuple[int, int]] = []
        for begin in range(0, len(states), most := max(1, WRITTEN_BYTES // layout.length)):
            some = slice(begin, min(begin + most, len(states)))
            rows = self._room(layout, some.stop - begin)
            layout.pack(states[some], rows)
            self._rows.write(rows, places[some])
            written += zip(places[some].tolist(), _checksums(rows).tolist(), strict=True)
        return written

    def _named(
        self,
        round_number: int,
        layout: Layout,
        clients: Sequence[int],
        written: Sequence[tuple[int, int]],
    ) -> list[tuple[int, int, int, int, int]]:
        """What the table of places says of states that were written."""
        number = self._number(layout)
        whose = zip(clients, written, strict=True)
        return [(client, round_number, number, *where) for client, where in whose]

    def _save_places(self, rows: Sequence[tuple[int, int, int, int, int]]) -> list[tuple[int, int]]:
        """Save places, as the columns of their table; returns those that they replace."""
        if self._places.executemany(SAVE, rows).rowcount == len(rows):
            return []
        new = {(layout, place) for _, _, layout, place, _ in rows}
        own = "client = ? AND round = ?"
        old = [place for client, number, *_ in rows for place in self._drop(own, client, number)]
        self._places.executemany(SAVE, rows)
        return [place for place in old if place not in new]

    def _room(self, layout: Layout, count: int) -> Rows:
        """(count, length): scratch for rows of one layout after another."""
        if layout != self._packed or len(self._scratch) < count:
            self._packed, self._scratch = layout, np.zeros((count, layout.length), dtype=np.uint8)
        return self._scratch[:count]

    def _drop(self, which: str, *numbers: int) -> list[tuple[int, int]]:
        """Delete places; returns which, as (layout, place)."""
        select = f"SELECT layout, place FROM places WHERE {which}"
        dropped = self._places.execute(select, numbers).fetchall()
        self._places.execute(f"DELETE FROM places WHERE {which}", numbers)
        return dropped

    def _used(self) -> tuple[Offsets, Offsets]:
        return self._parts(self._places.execute("SELECT layout, place FROM places").fetchall())

    def _parts(self, places: Sequence[tuple[int, int]]) -> tuple[Offsets, Offsets]:
        """Offsets and lengths of rows."""
        lengths = {layout: self._length(layout) for layout in {layout for layout, _ in places}}
        return (
            np.array([place for _, place in places], dtype=np.int64),
            np.array([lengths[layout] for layout, _ in places], dtype=np.int64),
        )

    def _length(self, layout: int) -> int:
        return self._layouts[layout].length

    def _number(self, layout: Layout) -> int:
        if layout not in self._numbers:
            add = "INSERT INTO layouts (arrays) VALUES (?)"
            number = self._places.execute(add, (layout.to_json(),)).lastrowid
            assert number is not None
            self._numbers[layout], self._layouts[number] = number, layout
        return self._numbers[layout]

    def _drop_layouts(self) -> None:
        """Forget the layouts that no state has any more, if there are many."""
        if len(self._layouts) > MANY_LAYOUTS:
            unused = "layout NOT IN (SELECT layout FROM places)"
            self._places.execute(f"DELETE FROM layouts WHERE {unused}")
            self._read_layouts()

    def _read_layouts(self) -> None:
        found = self._places.execute("SELECT layout, arrays FROM layouts")
        self._layouts = {number: Layout.from_json(arrays) for number, arrays in found}
        self._numbers = {layout: number for number, layout in self._layouts.items()}

    # -- inside -------------------------------------------------------------------------------

    def _prepared(self, cache_bytes: int) -> int:
        """Set up the tables; returns the last committed round."""
        self._places.executescript(
            f"""
            PRAGMA journal_mode = PERSIST;
            PRAGMA synchronous = OFF;
            PRAGMA cache_size = -{max(1, cache_bytes >> 10)};
            """
        )
        (found,) = self._places.execute("PRAGMA user_version").fetchone()
        (tables,) = self._places.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if tables == 0:
            start = f"INSERT INTO progress VALUES ({NONE_COMMITTED});"
            self._places.executescript(f"BEGIN IMMEDIATE; {SCHEMA} {start} COMMIT;")
        elif found == 1:
            self._migrate()
        elif found != FORMAT:
            raise RunRefused(
                f"{self._name} holds client states of format {found}; this version reads formats "
                f"up to {FORMAT}"
            )
        self._read_layouts()
        (committed,) = self._places.execute("SELECT committed FROM progress").fetchone()
        return int(committed)

    def _migrate(self) -> None:
        """Move the states of format 1, a BLOB each, into rows."""
        self._places.execute("BEGIN IMMEDIATE")
        for statement in filter(str.strip, SCHEMA.split(";")):
            self._places.execute(statement)
        self._read_layouts()
        old = self._places.execute("SELECT client, round, checksum, tensors FROM states")
        while some := old.fetchmany(AT_ONCE):
            for client, round_number, checksum, tensors in some:
                state = self._decoded(client, round_number, checksum, tensors)
                layout = Layout.of(state)
                written = self._write(layout, [state])
                self._save_places(self._named(round_number, layout, [client], written))
        self._places.execute("DROP TABLE states")
        self._places.execute("COMMIT")
        self._places.execute("VACUUM")

    def _decoded(self, index: int, round_number: int, checksum: int, tensors: bytes) -> State:
        try:
            if zlib.crc32(tensors) == checksum:
                return from_bytes(tensors)
            self._refuse(index, round_number, "its checksum does not fit")
        except SafetensorError as error:
            self._refuse(index, round_number, str(error))

    def _refuse(self, index: int, round_number: int, reason: str) -> NoReturn:
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
            self._places.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._places.execute("COMMIT")
            except BaseException:
                if self._places.in_transaction:
                    self._places.execute("ROLLBACK")
                self._rows.look_again()
                self._read_layouts()
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise RunRefused(f"{self._name} cannot be used as client states: {error}") from error


def rows_of(path: Path) -> Path:
    """The file of the rows that belongs to a file of places."""
    return path.with_name(f"{path.name}-rows")


def _checksums(rows: Rows) -> Offsets:
    """(k,): the checksum of each row, the sum of its 64-bit words."""
    sums: Offsets = rows.view(np.int64).sum(axis=1)
    return sums


def _side_by_side(
    found: Sequence[_Place], length_of: Callable[[int], int]
) -> Iterator[tuple[int, int]]:
    """(begin, end) of parts of `found` whose rows lie side by side in the file."""
    begin = 0
    for at in range(1, len(found) + 1):
        last = found[at - 1]
        behind = (last.layout, last.place + length_of(last.layout))
        if at == len(found) or found[at][:2] != behind:
            yield begin, at
            begin = at
