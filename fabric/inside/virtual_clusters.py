"""VirtualClusters: the client of a Ray cluster's manager, which it creates if there is none."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from fedpilot.common.host.users import current_user

from ..core.cluster_state import Entry, JobId
from ..core.places.groups import GroupId
from ..core.records import ROOT, ClusterId, ProcessId, VNodeId, has_started
from ..errors import FabricError, ManagerAway, ManagerGone, NoSuchCluster, NotInTime
from ..manager.rpc import call
from ..manager.settings import KeeperSettings
from ..spec import QueueOptions, VirtualCluster

CALL_TIMEOUT_S = 60.0
"""How long a manager may take to answer, beyond the time that the caller wants to wait."""

RETRY_S = 0.1
"""The pause before a manager that has died is asked again."""

SLICE_S = 5.0
"""How long one call waits for places; meanwhile it takes one of the manager's `CALLS`."""


WAIT_S = 24 * 3600.0
"""The default of how long a job waits for its virtual cluster."""

POLL_S = 0.5
"""The pause between two looks at a virtual cluster that waits for its places."""


class VirtualClusters:
    """A client of the manager."""

    def __init__(self, settings: KeeperSettings | None = None) -> None:
        """Find or create the manager of the Ray that this process has initialized."""
        self._settings = settings
        self._manager = self._found()

    def create(
        self,
        name: str,
        spec: VirtualCluster,
        *,
        parent: str = ROOT,
        wait_s: float = 30.0,
        deadline_s: float | None = None,
        detached: bool = False,
        with_process: bool = False,
        group: str | None = None,
        says_what_ended: bool = False,
        **queue: Unpack[QueueOptions],
    ) -> Mapping[str, Any]:
        """Reserve a virtual cluster: it gets all its places at once, or waits.

        Returns its `id`, `state`, `reason`, `position` in the queue, and `asked_at`, after at most
        `wait_s` seconds. The virtual cluster then waits on, for at most `deadline_s` in all. It
        ends with this process's job unless it is `detached`, and if `with_process` also with this
        process. `group` is the id for its placement group. With `says_what_ended` a node under
        notice is not idle before `leave` names it. `queue` says how it waits: `priority`, and at
        the root `project`, `pool`, `priority_class` and `preemptible`. Raises SpecError,
        NameTaken, NoSuchCluster for the parent, NeverFits, NotInTime.
        """
        import ray

        now = time.time()
        entry = Entry(
            request=spec.request(
                name,
                parent=ClusterId(parent),
                deadline=None if deadline_s is None else now + deadline_s,
                **queue,
            ),
            spec=spec.to_dict(),
            owner=None if detached else JobId(ray.get_runtime_context().get_job_id()),
            user=current_user(),
            process=_worker() if with_process and not detached else None,
            asked_at=now,
            group=None if group is None else GroupId(group),
            says_what_ended=says_what_ended,
        )
        end = time.monotonic() + wait_s
        while True:  # repeating a request does not queue it twice
            left = max(0.0, end - time.monotonic())
            found: Mapping[str, Any] = self.call(
                "create", entry, min(left, SLICE_S), patience_s=left
            )
            if has_started(found["state"]) or left <= SLICE_S:
                return found

    def check(
        self,
        name: str,
        spec: VirtualCluster,
        *,
        parent: str = ROOT,
        **queue: Unpack[QueueOptions],
    ) -> None:
        """Refuse what `create` would refuse.

        NameTaken, NoSuchCluster, QueueRefused, NeverFits, SpecError.
        """
        request = spec.request(name, parent=ClusterId(parent), **queue)
        user = (current_user(),) if queue else ()  # which older managers do not expect
        self.call("check", request, *user)

    def wait(self, name: str, wait_s: float = WAIT_S) -> None:
        """Wait until an existing one has its places. NoSuchCluster, NotInTime."""
        began = time.monotonic()
        found = self.show(name)
        while not has_started(found["state"]):
            waited = time.monotonic() - began
            if waited >= wait_s:
                raise NotInTime(name, waited, found["reason"])
            time.sleep(min(POLL_S, wait_s - waited))
            try:
                found = self.show(name)
            except NoSuchCluster:
                raise NotInTime(name, time.monotonic() - began, self.ending(name)) from None

    def delete(self, name: str, *, force: bool = False) -> tuple[str, ...]:
        """End a virtual cluster and all inside it; return their names.

        NoSuchCluster. NotYours for another user's, unless `force`, which the history records.
        """
        asked = (ClusterId(name), secrets.token_hex(8), current_user(), force)
        ended: tuple[str, ...] = self.call("delete", *asked)
        return ended

    def leave(self, name: str, node: VNodeId | None = None) -> None:
        """Say that nothing runs any more in one that has to leave its places, or on a node of it.

        CallUnavailable.
        """
        self.call("leave", ClusterId(name), *(() if node is None else (node,)))

    def restore(self, names: Sequence[str] = ()) -> Mapping[str, Any]:
        """Request these virtual clusters of a lost head again, or all detached ones.

        Returns the `restored` with their states and the `refused` with reasons. NoSuchCluster.
        """
        found: Mapping[str, Any] = self.call("restore", tuple(names), current_user())
        return found

    def forget(self, names: Sequence[str] = ()) -> tuple[str, ...]:
        """No longer list these, or all, as lost with a head; return those that were listed."""
        found: tuple[str, ...] = self.call("forget", tuple(names))
        return found

    def show(self, name: str) -> Mapping[str, Any]:
        """One virtual cluster as a document. NoSuchCluster."""
        found: Mapping[str, Any] = self.call("show", ClusterId(name))
        return found

    def snapshot(self) -> Mapping[str, Any]:
        """All machines and virtual clusters as one document."""
        found: Mapping[str, Any] = self.call("snapshot")
        return found

    def history(self) -> tuple[Mapping[str, Any], ...]:
        """The latest events, oldest first."""
        found: tuple[Mapping[str, Any], ...] = self.call("history")
        return found

    def queues(self) -> Mapping[str, Any]:
        """The queues and their workloads as one document. CallUnavailable."""
        found: Mapping[str, Any] = self.call("queues")
        return found

    def queue_samples(self) -> Sequence[Mapping[str, Any]]:
        """What projects have held and deserved since the manager began, oldest first.

        CallUnavailable.
        """
        found: Sequence[Mapping[str, Any]] = self.call("queue_samples")
        return found

    def apply_queues(
        self,
        document: Mapping[str, Any],
        *,
        revision: int | None = None,
        dry_run: bool = False,
    ) -> Mapping[str, Any]:
        """Replace the file of queues (`spec/queue_file.py`); `dry_run` only says what would come.

        Returns the `revision`, and what `would` start, stop and wait. StaleRevision if another
        revision than the given one is applied, QueueInUse, SpecError, CallUnavailable.
        """
        asked = (document, revision, current_user(), dry_run)
        found: Mapping[str, Any] = self.call("apply_queues", *asked)
        return found

    def ending(self, name: str) -> str:
        """Why a virtual cluster ended, as far as the manager remembers."""
        told = [e for e in self.history() if (e["cluster"], e["event"]) == (name, "ended")]
        return str(told[-1]["reason"]) if told else "it was deleted"

    def call(
        self,
        method: str,
        *args: Any,
        patience_s: float = 0.0,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Any:
        """Call a method of the manager, perhaps twice; FabricError if it does not answer in time.

        Waits while Ray restarts the manager; finds or creates the successor of a dead one.
        """
        end = time.monotonic() + patience_s + timeout_s
        while True:
            manager = self._manager
            try:
                return call(manager, method, args, max(0.0, end - time.monotonic()))
            except (ManagerAway, ManagerGone) as error:
                if time.monotonic() + RETRY_S >= end:
                    raise
                if isinstance(error, ManagerGone) and self._manager is manager:
                    with contextlib.suppress(FabricError):  # there may be no head for a while
                        self._manager = self._found()
            time.sleep(RETRY_S)

    def _found(self) -> Any:
        from ..manager.actor import find_or_create

        return find_or_create(self._settings)


def _worker() -> ProcessId | None:
    """This process, if it is a worker; None for a driver, which ends with its job."""
    import ray

    if ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        return None
    return ProcessId(ray.get_runtime_context().get_worker_id())
