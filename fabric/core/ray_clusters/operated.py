"""What happens next to a declared Ray cluster whose machines another operator starts and heals.

The cluster is one resource of that operator, such as KubeRay's. `operate` compares what is declared
with the resource, and asks for at most one write: it applies the resource, or deletes it. It may be
asked again at any moment, since a write that has happened already changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from .declaration import GroupName, MachineName
from .lifecycle import RayClusterState
from .machines import MachineState


class ResourceWrite(StrEnum):
    """A write of the resource."""

    APPLY = "apply"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatedSettings:
    """Times for clusters that another operator keeps."""

    first_pause_s: float = 1.0
    """Before a call that has failed is made again; it doubles with each failure in a row."""
    longest_pause_s: float = 60.0
    away_s: float = 60.0
    """How long the API server may be away before a cluster that has never served has failed."""

    def pause_s(self, failures: int) -> float:
        """The pause after so many failures in a row."""
        return float(min(self.first_pause_s * 2 ** min(failures - 1, 30), self.longest_pause_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTrouble:
    """Why calls fail."""

    reason: str
    refused: bool
    """Whether the answer stays the same until a person changes something."""
    since_s: float
    """When the first of these failures in a row happened."""
    failures: int = 1
    again_s: float
    """When the next call is due."""
    digest: str = ""
    """What was declared when a write failed; another declaration is written at once."""

    @classmethod
    def after(
        cls,
        before: OperatorTrouble | None,
        reason: str,
        now: float,
        settings: OperatedSettings,
        *,
        refused: bool,
        wait_s: float = 0.0,
        digest: str = "",
    ) -> OperatorTrouble:
        """The trouble after one more failure; `wait_s` is what the server asks to wait."""
        if before is not None and (before.digest, before.refused) != (digest, refused):
            before = None
        failures = before.failures + 1 if before is not None else 1
        return cls(
            reason=reason,
            refused=refused,
            since_s=before.since_s if before is not None else now,
            failures=failures,
            again_s=now + max(settings.pause_s(failures), wait_s),
            digest=digest,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenResource:
    """The resource as the API server has it, compared with what is declared."""

    ours: bool
    """Whether this declaration has made it."""
    deleting: bool = False
    holds: tuple[str, ...] = ()
    """What the API server waits for before it removes the resource."""
    applied: str = ""
    """The digest of the declaration that was applied last."""
    differs: str = ""
    """The first key that is not as it was applied; empty if there is none."""
    observed: bool = False
    """Whether the operator has seen the newest content."""
    head_ready: bool = False
    suspended: bool = False
    failed: bool = False
    ready_workers: int = 0
    desired_workers: int = 0
    """As the operator counts them."""
    trouble: str = ""
    """What the operator says is wrong."""


ABSENT = "absent"
"""The resource is known not to exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatedView:
    """What is known of a cluster that another operator keeps."""

    resource: SeenResource | str | None = None
    """The resource, or `ABSENT`; None before the first answer of the API server."""
    reading: OperatorTrouble | None = None
    """Why the resource cannot be read now."""
    writing: OperatorTrouble | None = None
    """Why the last write failed."""
    asked: str = "the API server"
    """What tells whether the resource exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatedDeclaration:
    """What is declared of a cluster that another operator keeps."""

    digest: str
    """Equal for equal content."""
    workers: int | None
    """How many machines the groups of workers should have; None: the operator decides."""
    suspended: bool = False
    deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatedMachine:
    """A machine of the operator's; it is shown, and never started or ended here."""

    name: MachineName
    number: int
    """The order in which machines were first seen."""
    group: GroupName
    host: str
    node: str
    """The name that Ray knows it by."""
    state: MachineState
    since_s: float
    reason: str
    offers: Mapping[str, float] = field(default_factory=dict, hash=False)
    """What it has, by resource; empty where the declaration says it."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Its labels in Ray; empty where the declaration says them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatedMemory:
    """What must survive the manager of a cluster that another operator keeps."""

    state: RayClusterState = RayClusterState.STARTING
    state_since_s: float = 0.0
    place: str = ""
    """Where the resource is, such as a namespace; empty before it was found out."""
    next_number: int = 0
    """Of the next machine that is seen."""
    machines: Mapping[MachineName, OperatedMachine] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatedTurn:
    """One decision about a cluster that another operator keeps."""

    state: RayClusterState
    write: ResourceWrite | None = None
    because: str = ""
    """Why the write is due."""
    reason: str = ""
    """Why the cluster is not as declared."""
    stuck: bool = False
    """Whether it stays so until a person changes something."""
    wake_s: float | None = None
    """When time alone may change the decision; None: never."""
    finished: bool = False
    """Whether nothing is left of a deleted cluster."""


S = RayClusterState
_SERVING = (S.READY, S.SCALING, S.RECOVERING)


def operate(
    declared: OperatedDeclaration,
    before: RayClusterState,
    view: OperatedView,
    now: float,
    settings: OperatedSettings,
) -> OperatedTurn:
    """Decide what happens next; `before` is the state so far."""
    write, because, reason = _write(declared, view.resource)
    trouble = view.writing
    if trouble is not None and (write is None or _is_outdated(trouble, declared)):
        trouble = None
    trouble = trouble or view.reading
    waits = trouble is not None and trouble is not view.reading and now < trouble.again_s
    stuck = reason != "" and not declared.deleted and _is_foreign(view.resource)
    stuck = stuck or (trouble is not None and trouble.refused)
    if trouble is not None:
        reason = trouble.reason
    state = _state(declared, before, view.resource, write)
    lost = trouble is not None and (trouble.refused or now - trouble.since_s >= settings.away_s)
    if (lost or stuck) and state in (S.STARTING, S.SUSPENDED, S.FAILED):
        state = S.FAILED
    wakes = []
    if waits and trouble is not None:
        wakes.append(trouble.again_s)
    if trouble is not None and not lost:
        wakes.append(trouble.since_s + settings.away_s)
    return OperatedTurn(
        state=state,
        write=None if waits else write,
        because=because,
        reason=reason or (_lacks(declared, view) if state is not S.READY else ""),
        stuck=stuck or state is S.FAILED,
        wake_s=min((each for each in wakes if each > now), default=None),
        finished=declared.deleted and _is_gone(view.resource),
    )


def _is_outdated(trouble: OperatorTrouble, declared: OperatedDeclaration) -> bool:
    return trouble.digest != declared.digest


def _is_foreign(resource: SeenResource | str | None) -> bool:
    return isinstance(resource, SeenResource) and not resource.ours


def _is_gone(resource: SeenResource | str | None) -> bool:
    """Whether nothing of ours is there; a resource that is not ours stays untouched."""
    return resource == ABSENT or _is_foreign(resource)


def _write(
    declared: OperatedDeclaration, resource: SeenResource | str | None
) -> tuple[ResourceWrite | None, str, str]:
    """The write that is due, why, and what stands in its way."""
    if resource is None or (declared.deleted and _is_gone(resource)):
        return None, "", ""
    if not isinstance(resource, SeenResource):
        return ResourceWrite.APPLY, "there is no such resource", ""
    if not resource.ours:
        reason = "another RayCluster has this name there, and it is left alone: rename or remove it"
        return None, "", reason
    if resource.deleting:
        holds = f", which waits for {', '.join(resource.holds)}" if resource.holds else ""
        return None, "", f"Kubernetes removes the resource{holds}"
    if declared.deleted:
        return ResourceWrite.DELETE, "the cluster is deleted", ""
    if resource.applied != declared.digest:
        return ResourceWrite.APPLY, "the declaration has changed", ""
    if resource.differs:
        return ResourceWrite.APPLY, f"{resource.differs} is not as declared", ""
    return None, "", ""


def _state(
    declared: OperatedDeclaration,
    before: RayClusterState,
    resource: SeenResource | str | None,
    write: ResourceWrite | None,
) -> RayClusterState:
    if declared.deleted:
        return S.DELETING
    if resource is None:
        return before
    if not isinstance(resource, SeenResource) or not resource.ours or resource.deleting:
        return S.RECOVERING if before in _SERVING else S.STARTING
    current = write is None and resource.observed
    if declared.suspended and current and resource.suspended:
        return S.SUSPENDED
    if resource.failed:
        return S.FAILED
    if resource.head_ready:
        wanted = resource.desired_workers if declared.workers is None else declared.workers
        counts = {resource.ready_workers, resource.desired_workers, wanted}
        whole = current and not declared.suspended and len(counts) == 1
        return S.READY if whole else S.SCALING
    if declared.suspended:
        return S.SCALING if before is S.READY else before
    return S.RECOVERING if before in _SERVING else S.STARTING


def _lacks(declared: OperatedDeclaration, view: OperatedView) -> str:
    """What a cluster that is not ready waits for."""
    resource = view.resource
    if resource is None:
        return f"{view.asked} has not answered yet"
    if not isinstance(resource, SeenResource) or declared.suspended or declared.deleted:
        return ""
    if resource.trouble:
        return resource.trouble
    if not resource.observed:
        return "KubeRay has not seen the newest declaration yet: is its operator running?"
    if not resource.head_ready:
        return "the pod of the head is not ready"
    return f"{resource.ready_workers} of {resource.desired_workers} workers are ready"
