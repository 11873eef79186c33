"""Asks again for the virtual clusters that a Ray cluster lost when its head died."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.cluster_state import Entry
from ..core.heads import HeadRecord, Remembered, gone_of, restorable
from ..core.records import ClusterId
from ..errors import FabricError, NoSuchCluster
from ..spec import VirtualCluster
from .reconciler import Reconciler
from .snapshot import Snapshot


def restore(
    reconciler: Reconciler, record: HeadRecord, names: Sequence[str], user: str, now: float
) -> dict[str, Any]:
    """Ask for these again, or for all detached ones; what was restored, and why the rest was not.

    Each belongs to the user that it belonged to. Asking again for the same is answered alike.
    NoSuchCluster, before anything is asked for, for a name that is neither gone nor there.
    """
    entries = reconciler.state.entries
    gone = gone_of(record, entries, now)
    for name in names:
        if name not in entries and all(each.id != name for each in gone):
            raise NoSuchCluster(name, [each.id for each in gone])
    found = restorable(gone, entries, names, now)
    refused = dict(found.refused)
    restored = [name for name in names if name in entries]
    for each in found.again:
        try:
            reconciler.admission.enter(_entry(each, now))
        except NoSuchCluster:
            refused[each.id] = f"{each.parent}, which it was inside of, has no places yet"
        except FabricError as error:
            refused[each.id] = str(error)
        else:
            reconciler.statuses.note(each.id, "restored", f"by {user or 'an unknown user'}")
            restored.append(each.id)
    brief = Snapshot(reconciler).brief
    return {"restored": [brief(ClusterId(name)) for name in restored], "refused": refused}


def _entry(lost: Remembered, now: float) -> Entry:
    request = VirtualCluster.from_dict(lost.spec).request(
        lost.id,
        parent=lost.parent,
        priority=lost.priority,
        deadline=lost.deadline,
    )
    return Entry(request=request, spec=lost.spec, user=lost.user, asked_at=now)
