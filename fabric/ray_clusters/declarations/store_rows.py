"""The rows of the store: records and JSON values read and written inside a transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.ray_clusters.declaration import MachineName, RayClusterName
from ...errors import Fenced, NoSuchRayCluster
from .records import (
    Lease,
    RayClusterEvent,
    RayClusterUid,
    Revision,
    RoleName,
    StoredDeclaration,
    UntoldEvent,
)
from .store_file import MOST_EVENTS, MOST_REMOVED

_DECLARATION = "SELECT uid, name, document, revision, by, at, deleted FROM declarations"


def find(connection: sqlite3.Connection, name: RayClusterName) -> StoredDeclaration | None:
    """The declaration of that name, if there is one."""
    found = connection.execute(f"{_DECLARATION} WHERE name = ?", (name,)).fetchone()
    return None if found is None else _declaration(found)


def written_since(
    connection: sqlite3.Connection, revision: Revision
) -> tuple[StoredDeclaration, ...]:
    """The declarations that were written after a revision, by name."""
    found = connection.execute(f"{_DECLARATION} WHERE revision > ? ORDER BY name", (revision,))
    return tuple(_declaration(row) for row in found)


def put(connection: sqlite3.Connection, declaration: StoredDeclaration) -> None:
    """Write a declaration; it replaces the one of the same uid."""
    connection.execute(
        "INSERT OR REPLACE INTO declarations VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            declaration.uid,
            declaration.name,
            json_text(declaration.document),
            declaration.revision,
            declaration.by,
            declaration.at,
            declaration.deleted,
        ),
    )


def names(connection: sqlite3.Connection) -> list[str]:
    """The names of all declared Ray clusters, in order."""
    return [name for (name,) in connection.execute("SELECT name FROM declarations ORDER BY name")]


def next_number(connection: sqlite3.Connection, *, declared: bool = False) -> Revision:
    """The counter's next number, for a change of the declarations or for another."""
    connection.execute("UPDATE counter SET revision = revision + 1")
    if declared:
        connection.execute("UPDATE counter SET declared = revision")
    (number,) = connection.execute("SELECT revision FROM counter").fetchone()
    return Revision(number)


def forget_removed(connection: sqlite3.Connection) -> None:
    """Keep the uids of the last `MOST_REMOVED` removals."""
    found = connection.execute(
        "SELECT revision FROM removed ORDER BY revision DESC LIMIT 1 OFFSET ?", (MOST_REMOVED,)
    ).fetchone()
    if found is not None:
        connection.execute("UPDATE counter SET forgotten = ?", found)
        connection.execute("DELETE FROM removed WHERE revision <= ?", found)


def machines_of(
    connection: sqlite3.Connection, uid: RayClusterUid
) -> dict[MachineName, dict[str, Any]]:
    """What is remembered of a Ray cluster's machines, by name."""
    found = connection.execute(
        "SELECT name, what FROM machines WHERE uid = ? ORDER BY name", (uid,)
    )
    return {MachineName(name): json.loads(what) for name, what in found}


def check(connection: sqlite3.Connection, lease: Lease, uid: RayClusterUid | None = None) -> None:
    """Fenced if the lease is not the newest; NoSuchRayCluster if a uid is given and not there."""
    newest = last_lease(connection, lease.role)
    if newest != lease:
        fence, holder = (0, "") if newest is None else (newest.fence, newest.holder)
        raise Fenced(lease.role, lease.holder, lease.fence, fence, holder)
    if uid is not None:
        found = connection.execute("SELECT 1 FROM declarations WHERE uid = ?", (uid,)).fetchone()
        if found is None:
            raise NoSuchRayCluster(uid, names(connection))


def last_lease(connection: sqlite3.Connection, role: RoleName) -> Lease | None:
    """The newest lease of a role; its holder is empty once it is released."""
    found = connection.execute(
        "SELECT fence, holder FROM leases WHERE role = ?", (role,)
    ).fetchone()
    return None if found is None else Lease(role=role, fence=found[0], holder=found[1])


def write_lease(connection: sqlite3.Connection, lease: Lease) -> None:
    """Write the newest lease of its role."""
    row = lease.role, lease.fence, lease.holder
    connection.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?)", row)


def add_events(
    connection: sqlite3.Connection, uid: RayClusterUid, events: Sequence[UntoldEvent]
) -> list[RayClusterEvent]:
    """Add events; of a Ray cluster the last `MOST_EVENTS` stay."""
    added = [
        RayClusterEvent(
            id=next_number(connection),
            at=each.at,
            kind=each.kind,
            machine=each.machine,
            reason=storable(each.reason),
        )
        for each in events
    ]
    connection.executemany(
        "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)",
        [(uid, each.id, each.at, each.kind, each.machine, each.reason) for each in added],
    )
    connection.execute(
        "DELETE FROM events WHERE uid = ? AND id <= "
        "(SELECT id FROM events WHERE uid = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
        (uid, uid, MOST_EVENTS),
    )
    return added


def json_text(value: Mapping[str, Any]) -> str:
    """The JSON text of a mapping. TypeError or ValueError if it has none."""
    return json.dumps(dict(value), allow_nan=False)


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two JSON objects are equal; unlike in Python, 1 and true are not."""
    return _canonical(one) == _canonical(other)


def storable(text: str) -> str:
    """The text without what SQLite cannot keep, as are lone surrogates (undecoded bytes)."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _canonical(value: Mapping[str, Any]) -> str:
    return json.dumps(dict(value), sort_keys=True)


def _declaration(row: tuple[Any, ...]) -> StoredDeclaration:
    uid, name, document, revision, by, at, deleted = row
    return StoredDeclaration(
        uid=RayClusterUid(uid),
        name=RayClusterName(name),
        document=json.loads(document),
        revision=Revision(revision),
        by=by,
        at=at,
        deleted=bool(deleted),
    )
