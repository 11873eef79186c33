"""LedgerFile: the books of one Ray cluster on disk, written before anybody is told of a decision.

An SQLite file with a row for each machine, cluster, vnode, piece of work, request and placement
group. `save` writes what has changed, in one transaction: whoever dies in the middle leaves what
was there before. It is written without fsync, so it survives the death of any process, not a power
cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ..core.books import Books, Entry
from ..core.invariants import broken
from ..core.ledger import Ledger
from ..core.places.groups import Group, GroupId, Piece
from ..core.places.request import Request
from ..core.records import (
    Bundle,
    BundleGroup,
    Cluster,
    ClusterId,
    Loan,
    Machine,
    MachineId,
    SchedulingPolicy,
    Use,
    VNode,
    VNodeId,
    VNodeKind,
    WorkId,
)
from ..core.resources import Resources
from ..core.routing.work import Work, WorkState
from ..core.selectors import Condition, Selector, parse
from ..errors import FabricError

FORMAT = 1
OWN_POLL_S = 0.02
TABLES = ("machines", "clusters", "vnodes", "uses", "entries", "groups", "works", "answers")

_SCHEMA = (
    "".join(f"CREATE TABLE {name} (id TEXT PRIMARY KEY, what TEXT NOT NULL);" for name in TABLES)
    + "CREATE TABLE ledger (name TEXT NOT NULL);"
    + f"PRAGMA user_version = {FORMAT};"
)


async def own(path: Path) -> int:
    """Wait until no other process owns a ledger; this one does until it ends, or closes the lock.

    A manager that was killed may answer for a moment more, while its successor begins: what it has
    promised by then must be in the file before that is read.
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
        """Open or make the file; in memory without a path. FabricError for what is no ledger."""
        self._name = "a ledger in memory" if path is None else str(path)
        self._asked: dict[ClusterId, int] = {}
        """The places in the order of asking."""
        self.closed = False
        """Whether it was closed, as it also is when something cannot be written."""
        self._order = itertools.count()
        with self._explained():
            self._file = sqlite3.connect(path or ":memory:", isolation_level=None)
        try:
            with self._explained():
                self._prepare()
        except BaseException:
            self._file.close()
            raise

    @property
    def name(self) -> str:
        """What tells the placement groups of this ledger from those of any other."""
        with self._explained():
            (name,) = self._file.execute("SELECT name FROM ledger").fetchone()
        return str(name)

    def load(self) -> Books:
        """The books as they were last saved."""
        with self._explained():
            rows = {name: self._rows(name) for name in TABLES}
        ledger = Ledger.restored(
            machines=[_machine(id, what) for id, what in rows["machines"].items()],
            clusters=[_cluster(id, what) for id, what in rows["clusters"].items()],
            vnodes=[_vnode(id, what) for id, what in rows["vnodes"].items()],
            loans=[loan for id, what in rows["vnodes"].items() for loan in _loans(id, what)],
            uses={WorkId(id): _use(what) for id, what in rows["uses"].items()},
        )
        if wrong := broken(ledger):
            raise FabricError(f"{self._name} does not add up: {wrong[0]}")
        order = sorted(rows["entries"].items(), key=lambda row: int(row[1]["asked"]))
        self._asked = {ClusterId(id): int(row["asked"]) for id, row in order}
        self._order = itertools.count(max(self._asked.values(), default=-1) + 1)
        books = Books(
            ledger,
            [_entry(id, what) for id, what in order],
            [_group(id, what) for id, what in rows["groups"].items()],
            sorted((_work(*row) for row in rows["works"].items()), key=lambda work: work.number),
        )
        for key, ended in rows["answers"].items():
            books.answer(key, tuple(ended["ended"]))
        books.changed_answers()
        return books

    def save(self, books: Books, notes: Mapping[str, Any] | None = None) -> None:
        """Write what has changed since the last time, and notes with it.

        The same books have to be given each time.
        """
        ledger, changes = books.ledger, books.ledger.changes()
        entries = books.changed_entries()
        for id in entries - books.entries.keys():
            self._asked.pop(id, None)
        for id in books.entries if entries else ():
            if id not in self._asked:
                self._asked[id] = next(self._order)
        with self._explained():
            self._file.execute("BEGIN IMMEDIATE")
            try:
                self._write("machines", changes.machines, ledger.machines, _machine_row)
                self._write("clusters", changes.clusters, ledger.clusters, _cluster_row)
                self._write("vnodes", changes.vnodes, ledger.vnodes, partial(_vnode_row, ledger))
                self._write("uses", changes.works, ledger.uses, _use_row)
                self._write("entries", entries, books.entries, partial(_entry_row, self._asked))
                self._write("groups", books.groups.changes(), books.groups, _group_row)
                self._write("works", books.works.changes(), books.works, _work_row)
                answers = books.changed_answers()
                self._write("answers", answers, books.answers, lambda ended: {"ended": ended})
                for name, what in (notes or {}).items():
                    self._note(name, what)
                self._file.execute("COMMIT")
            except BaseException:
                self.close()  # what was not written is told nobody, and must be loaded anew
                raise

    def note(self, name: str) -> Any:
        """What was noted under a name, beside the books; None if nothing was."""
        with self._explained():
            found = self._file.execute("SELECT what FROM notes WHERE id = ?", (name,)).fetchone()
        return None if found is None else json.loads(found[0])

    def write_note(self, name: str, what: Any) -> None:
        """Note something that the books do not hold."""
        with self._explained():
            self._note(name, what)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self.closed = True
        self._file.close()

    def _note(self, name: str, what: Any) -> None:
        self._file.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, json.dumps(what)))

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
        elif version != FORMAT:
            raise FabricError(
                f"{self._name} is no ledger of format {FORMAT}, which this version reads, but of "
                f"format {version}"
            )
        # Files of before have none, and versions of before do not look.
        self._file.execute("CREATE TABLE IF NOT EXISTS notes (id TEXT PRIMARY KEY, what TEXT)")

    def _write(
        self,
        table: str,
        changed: Iterable[str],
        now: Any,
        row: Callable[[Any], Mapping[str, Any]],
    ) -> None:
        gone = [(id,) for id in changed if id not in now]
        there = [(id, json.dumps(row(now[id]))) for id in changed if id in now]
        self._file.executemany(f"DELETE FROM {table} WHERE id = ?", gone)
        self._file.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", there)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise FabricError(f"{self._name} cannot be used as a ledger: {error}") from error


def _resources(units: Iterable[Sequence[Any]]) -> Resources:
    return Resources(tuple((str(name), int(amount)) for name, amount in units))


def _machine_row(machine: Machine) -> dict[str, Any]:
    return {
        "hostname": machine.hostname,
        "total": machine.total.units,
        "labels": dict(machine.labels),
    }


def _machine(id: str, what: Mapping[str, Any]) -> Machine:
    return Machine(
        id=MachineId(id),
        hostname=what["hostname"],
        total=_resources(what["total"]),
        labels=what["labels"],
    )


def _cluster_row(cluster: Cluster) -> dict[str, Any]:
    return {
        "parent": cluster.parent,
        "limits": dict(cluster.limits),
        "flexible": cluster.flexible,
    }


def _cluster(id: str, what: Mapping[str, Any]) -> Cluster:
    return Cluster(
        id=ClusterId(id),
        parent=ClusterId(what["parent"]),
        limits=what["limits"],
        flexible=what["flexible"],
    )


def _vnode_row(ledger: Ledger, vnode: VNode) -> dict[str, Any]:
    return {
        "cluster": vnode.cluster,
        "parent": vnode.parent,
        "machine": vnode.machine,
        "kind": vnode.kind,
        "resources": vnode.resources.units,
        "labels": dict(vnode.labels),
        "loans": [[loan.resources.units, loan.until] for loan in ledger.loans_of(vnode.id)],
    }


def _vnode(id: str, what: Mapping[str, Any]) -> VNode:
    return VNode(
        id=VNodeId(id),
        cluster=ClusterId(what["cluster"]),
        parent=VNodeId(what["parent"]),
        machine=MachineId(what["machine"]),
        kind=VNodeKind(what["kind"]),
        resources=_resources(what["resources"]),
        labels=what["labels"],
    )


def _loans(id: str, what: Mapping[str, Any]) -> list[Loan]:
    return [
        Loan(vnode=VNodeId(id), resources=_resources(units), until=until)
        for units, until in what["loans"]
    ]


def _use_row(use: Use) -> dict[str, Any]:
    return {"vnode": use.vnode, "resources": use.resources.units}


def _use(what: Mapping[str, Any]) -> Use:
    return Use(vnode=VNodeId(what["vnode"]), resources=_resources(what["resources"]))


def _entry_row(asked: Mapping[ClusterId, int], entry: Entry) -> dict[str, Any]:
    request = entry.request
    return {
        "asked": asked[request.id],
        "spec": dict(entry.spec),
        "owner": entry.owner,
        "user": entry.user,
        "process": entry.process,
        "jobs": sorted(entry.jobs),
        "asked_at": entry.asked_at,
        "group": entry.group,
        "waiting": entry.waiting,
        "begun": entry.begun,
        "parent": request.parent,
        "groups": [[group.policy, _bundle_rows(group)] for group in request.groups],
        "labels": [dict(labels) for labels in request.labels],
        "least": request.least.units,
        "limits": dict(request.limits),
        "flexible": request.flexible,
        "priority": request.priority,
        "deadline": request.deadline,
    }


def _bundle_rows(group: BundleGroup) -> list[Any]:
    return [[bundle.resources.units, _selector_row(bundle.selector)] for bundle in group.bundles]


def _selector_row(selector: Selector) -> dict[str, str]:
    return {label: str(condition) for label, condition in selector.items()}


def _entry(id: str, what: Mapping[str, Any]) -> Entry:
    request = Request(
        id=ClusterId(id),
        parent=ClusterId(what["parent"]),
        groups=tuple(_bundle_group(*group) for group in what["groups"]),
        labels=tuple(what["labels"]),
        least=_resources(what["least"]),
        limits=what["limits"],
        flexible=what["flexible"],
        priority=what["priority"],
        deadline=what["deadline"],
    )
    return Entry(
        request=request,
        spec=what["spec"],
        owner=what["owner"],
        user=what.get("user", ""),  # files of before have none
        process=what.get("process"),  # files of before have none
        jobs=frozenset(what["jobs"]),
        asked_at=what["asked_at"],
        group=what["group"],
        waiting=what["waiting"],
        begun=what["begun"],
    )


def _bundle_group(policy: str, bundles: Sequence[Any]) -> BundleGroup:
    return BundleGroup(
        bundles=tuple(
            Bundle(resources=_resources(units), selector=_selector(selector))
            for units, selector in bundles
        ),
        policy=SchedulingPolicy(policy),
    )


def _selector(conditions: Mapping[str, str]) -> dict[str, Condition]:
    return {label: parse(text) for label, text in conditions.items()}


def _group_row(group: Group) -> dict[str, Any]:
    return {
        "cluster": group.cluster,
        "policy": group.policy,
        "pieces": [
            [piece.vnode, piece.resources.units, piece.machine, _selector_row(piece.selector)]
            for piece in group.pieces
        ],
    }


def _group(id: str, what: Mapping[str, Any]) -> Group:
    return Group(
        id=GroupId(id),
        cluster=ClusterId(what["cluster"]),
        policy=SchedulingPolicy(what["policy"]),
        pieces=tuple(
            Piece(
                vnode=vnode,
                resources=_resources(units),
                machine=machine,
                selector=_selector(selector),
            )
            for vnode, units, machine, selector in what["pieces"]
        ),
    )


def _work_row(work: Work) -> dict[str, Any]:
    return {
        "number": work.number,
        "cluster": work.cluster,
        "demand": work.demand.units,
        "selector": _selector_row(work.selector),
        "actor": work.actor,
        "lasting": work.lasting,
        "owner": work.owner,
        "group": work.group,
        "bundle": work.bundle,
        "vnode": work.vnode,
        "state": work.state,
    }


def _work(id: str, what: Mapping[str, Any]) -> Work:
    return Work(
        id=WorkId(id),
        number=what["number"],
        cluster=ClusterId(what["cluster"]),
        demand=_resources(what["demand"]),
        selector=_selector(what["selector"]),
        actor=what["actor"],
        lasting=what.get("lasting", bool(what["actor"])),  # files of before have none
        owner=what["owner"],
        group=GroupId(what["group"]),
        bundle=what["bundle"],
        vnode=what["vnode"],
        state=WorkState(what["state"]),
    )
