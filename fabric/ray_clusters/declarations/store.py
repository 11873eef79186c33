"""RayClusterStore: the declarations of a site's Ray clusters, and what their manager remembers.

Lifecycle manager, autoscaler and command lines meet here, in one file of one computer. Its rules:

* A change of a declaration names the revision that its writer saw, or is refused.
* A deleted declaration stays, marked, until the manager has ended its machines.
* What the manager writes names its lease, and is refused once another has a newer one.
* An answered write outlives all processes, and a power cut too; only status and events may miss
  from the last moments before one.
* Watchers in all processes are told after the commit, and read the state as it is then.

All calls are short and blocking, and may come from any thread. Times are epoch seconds from the
caller, and decide nothing.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ...core.ray_clusters.declaration import MachineName, RayClusterName
from ...errors import Conflict, FabricError, Fenced, NoSuchRayCluster, SpecError, StoreUnusable
from . import store_rows as rows
from .records import (
    UNDECLARED,
    DeclarationChanges,
    Lease,
    RayClusterEvent,
    RayClusterUid,
    Revision,
    RoleName,
    StoredDeclaration,
    UntoldEvent,
)
from .role_locks import RoleLocks
from .store_file import StoreFile
from .store_rows import json_text, same, storable
from .watching import StoreWatch, tell, watch_folder


class RayClusterStore:
    """One open store; closing it gives up its leases, as the end of its process does."""

    def __init__(
        self, path: Path, *, new_uid: Callable[[], str] = lambda: secrets.token_hex(8)
    ) -> None:
        """Open the file, or create it for this user alone. StoreUnusable."""
        self._file = StoreFile(path)
        self._locks = RoleLocks(self._file.path)
        self._leases: dict[RoleName, Lease] = {}
        """The leases whose locks this store holds."""
        self._new_uid = new_uid

    @property
    def path(self) -> Path:
        return self._file.path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and give up all leases; may be called twice."""
        self._locks.close()
        self._file.close()

    # -- declarations -----------------------------------------------------------------------------

    def find(self, name: RayClusterName) -> StoredDeclaration | None:
        """The declaration of that name; None if there is none."""
        with self._file.reading() as connection:
            return rows.find(connection, name)

    def declarations(self) -> tuple[StoredDeclaration, ...]:
        """All declarations, by name, also those that are being deleted."""
        return self.changes_since(UNDECLARED).declarations

    def changes_since(self, revision: Revision) -> DeclarationChanges:
        """What has changed in the declarations since a revision; all of them since 0."""
        with self._file.reading() as connection:
            now, forgotten = connection.execute(
                "SELECT revision, forgotten FROM counter"
            ).fetchone()
            whole = revision == UNDECLARED or not forgotten <= revision <= now
            since = UNDECLARED if whole else revision
            written = rows.written_since(connection, since)
            removed = connection.execute(
                "SELECT uid FROM removed WHERE revision > ? ORDER BY revision", (since,)
            ).fetchall()
        return DeclarationChanges(
            revision=Revision(now),
            declarations=written,
            removed=() if whole else tuple(RayClusterUid(uid) for (uid,) in removed),
            whole=whole,
        )

    def apply(
        self,
        name: RayClusterName,
        document: Mapping[str, Any],
        *,
        saw: Revision,
        by: str,
        at: float,
    ) -> StoredDeclaration:
        """Declare a Ray cluster (`saw` 0), or change its declaration from the revision `saw`.

        An equal document changes nothing. Conflict; SpecError if the document is no JSON object.
        """
        if not name or storable(name) != name:
            raise SpecError(f"this is no name for a Ray cluster: {name!r}")
        try:
            text = json_text(document)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"the declaration of Ray cluster {name!r} is no JSON: {error}"
            ) from None
        with self._file.writing() as connection:
            found = rows.find(connection, name)
            if (found.revision if found else UNDECLARED) != saw or (found and found.deleted):
                raise _conflict(name, saw, found)
            if found and same(found.document, document):
                return found
            uid = found.uid if found else RayClusterUid(self._new_uid())
            written = StoredDeclaration(
                name=name,
                uid=uid,
                document=json.loads(text),
                revision=rows.next_number(connection, declared=True),
                by=storable(by),
                at=at,
            )
            rows.put(connection, written)
        self._tell()
        return written

    def delete(
        self, name: RayClusterName, *, saw: Revision, by: str, at: float
    ) -> StoredDeclaration:
        """Mark a Ray cluster for deletion; if it is marked already, nothing changes.

        Conflict; NoSuchRayCluster.
        """
        with self._file.writing() as connection:
            found = rows.find(connection, name)
            if found is None:
                raise NoSuchRayCluster(name, rows.names(connection))
            if found.deleted:
                return found
            if found.revision != saw:
                raise _conflict(name, saw, found)
            marked = replace(
                found,
                revision=rows.next_number(connection, declared=True),
                by=storable(by),
                at=at,
                deleted=True,
            )
            rows.put(connection, marked)
        self._tell()
        return marked

    def finish(self, lease: Lease, name: RayClusterName, uid: RayClusterUid) -> bool:
        """Remove a deleted declaration and all that is kept with it; False if it is gone already.

        FabricError if it is not marked for deletion or still has machines. Fenced.
        """
        with self._file.writing() as connection:
            rows.check(connection, lease)
            found = rows.find(connection, name)
            if found is None or found.uid != uid:
                return False
            if not found.deleted:
                raise FabricError(f"Ray cluster {name!r} stays: it is not marked for deletion")
            if machines := rows.machines_of(connection, uid):
                told = ", ".join(machines)
                raise FabricError(f"Ray cluster {name!r} stays: it still has machines ({told})")
            for table in ("declarations", "memory", "status", "events"):
                connection.execute(f"DELETE FROM {table} WHERE uid = ?", (uid,))
            connection.execute(
                "INSERT INTO removed VALUES (?, ?)",
                (uid, rows.next_number(connection, declared=True)),
            )
            rows.forget_removed(connection)
        self._tell()
        return True

    # -- what the manager remembers ---------------------------------------------------------------

    def machines(self, uid: RayClusterUid) -> dict[MachineName, dict[str, Any]]:
        """What the manager remembers of each machine, by name."""
        with self._file.reading() as connection:
            return rows.machines_of(connection, uid)

    def memory(self, uid: RayClusterUid) -> dict[str, Any] | None:
        """What the manager has put of a Ray cluster itself; None if nothing."""
        with self._file.reading() as connection:
            found = connection.execute("SELECT what FROM memory WHERE uid = ?", (uid,)).fetchone()
        return None if found is None else dict(json.loads(found[0]))

    def remember(
        self,
        lease: Lease,
        uid: RayClusterUid,
        memory: Mapping[str, Any],
        machines: Mapping[MachineName, Mapping[str, Any] | None],
        events: Sequence[UntoldEvent] = (),
    ) -> None:
        """Remember a Ray cluster, what has changed of its machines, and what that tells.

        All or nothing. A machine of None is forgotten. Fenced; NoSuchRayCluster.
        """
        text = json_text(memory)
        written = [
            (uid, name, json_text(what)) for name, what in machines.items() if what is not None
        ]
        gone = [(uid, name) for name, what in machines.items() if what is None]
        with self._file.writing() as connection:
            rows.check(connection, lease, uid)
            connection.execute("INSERT OR REPLACE INTO memory VALUES (?, ?)", (uid, text))
            connection.executemany("INSERT OR REPLACE INTO machines VALUES (?, ?, ?)", written)
            connection.executemany("DELETE FROM machines WHERE uid = ? AND name = ?", gone)
            if events:
                rows.add_events(connection, uid, events)
        if events:
            self._tell()

    # -- status and events ------------------------------------------------------------------------

    def status(self, uid: RayClusterUid) -> dict[str, Any] | None:
        """The status of a Ray cluster; None if there is none yet."""
        return self.statuses().get(uid)

    def statuses(self) -> dict[RayClusterUid, dict[str, Any]]:
        """The status of each Ray cluster that has one."""
        with self._file.reading() as connection:
            found = connection.execute("SELECT uid, what FROM status").fetchall()
        return {RayClusterUid(uid): json.loads(what) for uid, what in found}

    def put_status(self, lease: Lease, uid: RayClusterUid, status: Mapping[str, Any]) -> bool:
        """Write the status; False if it is equal to the last one. Fenced; NoSuchRayCluster."""
        text = json_text(status)
        with self._file.writing(durable=False) as connection:
            rows.check(connection, lease, uid)
            found = connection.execute("SELECT what FROM status WHERE uid = ?", (uid,)).fetchone()
            if found is not None and same(json.loads(found[0]), status):
                return False
            connection.execute("INSERT OR REPLACE INTO status VALUES (?, ?)", (uid, text))
            rows.next_number(connection)
        self._tell()
        return True

    def events(
        self, uid: RayClusterUid, since: Revision = UNDECLARED
    ) -> tuple[RayClusterEvent, ...]:
        """The events after the one of the id `since`, the oldest first."""
        with self._file.reading() as connection:
            found = connection.execute(
                "SELECT id, at, kind, machine, reason FROM events WHERE uid = ? AND id > ? "
                "ORDER BY id",
                (uid, since),
            ).fetchall()
        names = "id", "at", "kind", "machine", "reason"
        return tuple(RayClusterEvent(**dict(zip(names, row, strict=True))) for row in found)

    def add_event(
        self,
        lease: Lease,
        uid: RayClusterUid,
        *,
        at: float,
        kind: str,
        machine: MachineName | None = None,
        reason: str = "",
    ) -> RayClusterEvent:
        """Add an event; of a Ray cluster the last `MOST_EVENTS` stay. Fenced; NoSuchRayCluster."""
        event = UntoldEvent(at=at, kind=kind, machine=machine, reason=reason)
        with self._file.writing(durable=False) as connection:
            rows.check(connection, lease, uid)
            (added,) = rows.add_events(connection, uid, [event])
        self._tell()
        return added

    # -- leases -----------------------------------------------------------------------------------

    def acquire(self, role: RoleName, holder: str) -> Lease | None:
        """The lease of a role with a new fence; None while another living process, or this, has it.

        `holder` tells people who that is. ValueError if it is empty, or if the role cannot be part
        of a file's name.
        """
        if not holder:
            raise ValueError("a lease has a holder, who is named")
        try:
            if not self._locks.take(role):
                return None
        except OSError as error:
            path = str(error.filename or self.path)
            raise StoreUnusable(path, error.strerror or str(error)) from error
        try:
            with self._file.writing() as connection:
                last = rows.last_lease(connection, role)
                lease = Lease(
                    role=role, holder=storable(holder), fence=last.fence + 1 if last else 1
                )
                rows.write_lease(connection, lease)
        except BaseException:
            self._locks.drop(role)
            raise
        self._leases[role] = lease
        return lease

    def check(self, lease: Lease) -> None:
        """Fenced if the lease is another's now, or released."""
        with self._file.reading() as connection:
            rows.check(connection, lease)

    def release(self, lease: Lease) -> None:
        """Give up a lease; a write with it is refused from now on. May be called twice."""
        try:
            with self._file.writing() as connection, suppress(Fenced):
                rows.check(connection, lease)
                rows.write_lease(connection, Lease(role=lease.role, holder="", fence=lease.fence))
        finally:
            if self._leases.get(lease.role) == lease:
                del self._leases[lease.role]
                self._locks.drop(lease.role)

    def last_lease(self, role: RoleName) -> Lease | None:
        """The newest lease of a role, whose holder may be dead; None if it was released."""
        with self._file.reading() as connection:
            found = rows.last_lease(connection, role)
        return found if found and found.holder else None

    def is_held(self, role: RoleName) -> bool:
        """Whether a living process holds a role now. StoreUnusable."""
        try:
            return self._locks.is_held(role)
        except OSError as error:
            path = str(error.filename or self.path)
            raise StoreUnusable(path, error.strerror or str(error)) from error

    # -- watching ---------------------------------------------------------------------------------

    def watch(self, *, declarations_only: bool = False) -> StoreWatch:
        """Watch from now on, in this event loop; the watch is closed by its own `close`."""
        return StoreWatch(self.path, declarations_only=declarations_only)

    async def changes(self, *, declarations_only: bool = False) -> AsyncGenerator[Revision, None]:
        """The store's number, at once and then after each change, or several at a time."""
        with self.watch(declarations_only=declarations_only) as watch:
            yield watch.seen
            while True:
                await watch.wait()
                yield watch.seen

    def _tell(self) -> None:
        tell(watch_folder(self.path))


def _conflict(name: RayClusterName, saw: Revision, found: StoredDeclaration | None) -> Conflict:
    if found is None:
        return Conflict(name, saw, UNDECLARED)
    return Conflict(name, saw, found.revision, found.by, found.deleted)
