"""What the store of declared Ray clusters keeps, as records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NewType

from ...core.ray_clusters.declaration import MachineName, RayClusterName

RayClusterUid = NewType("RayClusterUid", str)
"""Random: a Ray cluster that is deleted and declared again gets another."""
Revision = NewType("Revision", int)
"""A number of the store's one counter, which grows with each write that watchers are told of."""
RoleName = NewType("RoleName", str)
"""What at most one process of a site does at a time."""

UNDECLARED = Revision(0)
"""The revision of a Ray cluster that is not declared; also before all writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDeclaration:
    """A Ray cluster as it was declared."""

    name: RayClusterName
    uid: RayClusterUid
    document: Mapping[str, Any] = field(hash=False)
    """As it was given, a RayCluster resource (`ray.io/v1`); the store does not interpret it."""
    revision: Revision
    """The number of its last write; a change names it."""
    by: str
    """The writer of that revision."""
    at: float
    """The time of that write, in epoch seconds."""
    deleted: bool = False
    """Whether it is marked for deletion: its machines end, and then it goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclarationChanges:
    """What has changed in the declarations since a revision."""

    revision: Revision
    """What to ask from next time."""
    declarations: tuple[StoredDeclaration, ...]
    """Those that were written since, by name."""
    removed: tuple[RayClusterUid, ...] = ()
    """Those that have gone since, in this order."""
    whole: bool = False
    """Whether `declarations` are all that there are, since it is not known any more what has gone:
    the revision is from too long ago, or from another store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UntoldEvent:
    """Something that happened to a Ray cluster, before the store has it."""

    at: float
    """In epoch seconds."""
    kind: str
    """A word that scripts may rely on."""
    machine: MachineName | None = None
    """None: it concerns no single machine."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayClusterEvent(UntoldEvent):
    """Something that happened to a Ray cluster."""

    id: Revision
    """Grows from event to event, over all Ray clusters of the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to do what a role does, until it is released or its process ends."""

    role: RoleName
    holder: str
    fence: int
    """Grows with each acquisition of the role; a write with an older one is refused."""
