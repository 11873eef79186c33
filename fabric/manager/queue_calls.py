"""QueueCalls: what `fedpilot queue` and jobs under notice ask of the manager.

These calls are not methods of the actor, which may get none (`manager/actor.py`): they come through
the manager's port alone.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..core.records import ClusterId, VNodeId
from .reconciler import Reconciler
from .scheduling.queue_document import queue_document


class QueueCalls:
    """The calls, by name."""

    def __init__(self, reconciler: Reconciler) -> None:
        self._reconciler = reconciler

    @property
    def by_name(self) -> Mapping[str, Callable[..., Awaitable[Any]]]:
        """For the manager's port."""
        return {
            "apply_queues": self.apply_queues,
            "queues": self.queues,
            "queue_samples": self.queue_samples,
            "leave": self.leave,
        }

    async def apply_queues(
        self,
        document: Mapping[str, Any],
        revision: int | None,
        user: str,
        dry_run: bool = False,
    ) -> Mapping[str, Any]:
        """Replace the file of queues; `dry_run` only says what would come of it.

        StaleRevision if another revision than the given one is applied; QueueInUse; SpecError.
        """
        return self._reconciler.admission.apply_queues(document, revision, user, dry_run=dry_run)

    async def queues(self) -> Mapping[str, Any]:
        """The queues and their workloads as a document."""
        admission = self._reconciler.admission
        return queue_document(
            admission.state,
            self._reconciler.statuses,
            admission.book,
            admission.root.stale_since,
            time.time(),
            admission.root.usage,
        )

    async def queue_samples(self) -> list[dict[str, Any]]:
        """What projects have held and deserved since the manager began."""
        return self._reconciler.admission.root.samples.documents()

    async def leave(self, id: ClusterId, node: VNodeId | None = None) -> None:
        """Record that all has ended in a virtual cluster under notice, or on a node of it."""
        admission = self._reconciler.admission
        admission.root.leave(id, node)
        admission.admit()
        admission.commit()
