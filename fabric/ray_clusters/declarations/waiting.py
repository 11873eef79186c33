"""Says whether a declared Ray cluster is in a state, may come to be, or cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import documents
from .records import StoredDeclaration
from .store import RayClusterStore


@dataclass(frozen=True, slots=True)
class RayClusterWait:
    """How far a Ray cluster is from a state."""

    reached: bool = False
    never: str = ""
    """Why it cannot be reached."""
    so_far: str = ""
    reason: str = ""
    """What it lacks, as far as its manager says."""

    def in_vain(self, name: str, state: str, timeout_s: float) -> str:
        """Why the wait was too short."""
        return f"{name} is not {state} after {timeout_s:g} s: {self.reason or self.so_far}"


def wait_of(store: RayClusterStore, stored: StoredDeclaration, state: str) -> RayClusterWait:
    """How far its newest revision is from being `ready`, `suspended` or `deleted`."""
    now = store.find(stored.name)
    if now is None or now.uid != stored.uid:
        return (
            RayClusterWait(reached=True)
            if state == "deleted"
            else RayClusterWait(never=f"{stored.name} is deleted")
        )
    found = documents.summary(store, now, documents.is_managed(store))
    seen = found["seen_revision"] == now.revision
    if found["state"] == state and seen:
        return RayClusterWait(reached=True)
    if found["state"] == "failed" and state == "ready" and seen:
        reasons = [found["reason"], *(each["reason"] for each in found["groups"].values())]
        why = "; ".join(filter(None, reasons)) or "its head cannot be started"
        return RayClusterWait(never=f"{stored.name} has failed: {why}")
    if found["stuck"] and seen:
        return RayClusterWait(never=f"{stored.name} is {found['state']}: {found['reason']}")
    so_far = f"it is {found['state']}; {_counts(found)}"
    return RayClusterWait(so_far=so_far, reason=found["reason"] or "")


def _counts(found: dict[str, Any]) -> str:
    groups = found["groups"]
    ready = sum(each["ready"] for each in groups.values())
    wanted = sum(each["wanted"] for each in groups.values())
    return f"{ready} of {wanted} machines are ready"
