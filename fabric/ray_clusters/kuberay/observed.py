"""What a live RayCluster resource and its pods say, read without trust in their form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from fedpilot.common.strict_yaml.errors import printable

from ...core.ray_clusters.declaration import GroupName, MachineName
from ...core.ray_clusters.machines import MachineState
from ...core.ray_clusters.operated import OperatedMachine, SeenResource
from .manifest import APPLIED, UID, KubeRayDeclaration

LONGEST = 300
"""In characters, of what Kubernetes says."""
CLUSTER_LABEL, GROUP_LABEL = "ray.io/cluster", "ray.io/group"
"""KubeRay's labels of a pod."""


def resource_of(live: Mapping[str, Any], declared: KubeRayDeclaration) -> SeenResource:
    """A live resource, compared with what is declared."""
    metadata, status = _section(live, "metadata"), _section(live, "status")
    conditions = {
        str(each.get("type")): each
        for each in _list(status, "conditions")
        if isinstance(each, Mapping)
    }
    state = status.get("state")
    return SeenResource(
        ours=_section(metadata, "labels").get(UID) == declared.uid,
        deleting=bool(metadata.get("deletionTimestamp")),
        holds=tuple(printable(str(each), 100) for each in _list(metadata, "finalizers")),
        applied=str(_section(metadata, "annotations").get(APPLIED, "")),
        differs=declared.differs(live),
        observed=_number(status, "observedGeneration") >= _number(metadata, "generation"),
        head_ready=_is_true(conditions, "HeadPodReady", state == "ready"),
        suspended=_is_true(conditions, "RayClusterSuspended", state == "suspended"),
        failed=state == "failed",
        ready_workers=_number(status, "readyWorkerReplicas"),
        desired_workers=_number(status, "desiredWorkerReplicas"),
        trouble=_trouble(status, conditions),
    )


def _is_true(conditions: Mapping[str, Any], name: str, otherwise: bool) -> bool:
    """A condition; KubeRay before 1.3 has none, and says the state alone."""
    found = conditions.get(name)
    return otherwise if found is None and not conditions else _status(found) == "True"


def _status(condition: Any) -> str:
    return str(condition.get("status")) if isinstance(condition, Mapping) else ""


def _trouble(status: Mapping[str, Any], conditions: Mapping[str, Any]) -> str:
    failure = conditions.get("ReplicaFailure")
    if failure is not None and _status(failure) == "True":
        return _said(failure) or "KubeRay cannot make its pods"
    if reason := status.get("reason"):
        return printable(str(reason), LONGEST)
    head = conditions.get("HeadPodReady")
    if head is not None and _status(head) != "True":
        return f"the pod of the head is not ready: {_said(head)}".removesuffix(": ")
    return ""


def _said(condition: Mapping[str, Any]) -> str:
    parts = [str(condition.get(key) or "") for key in ("reason", "message")]
    return printable(": ".join(filter(None, parts)), LONGEST)


def machines_of(
    pods: Iterable[Mapping[str, Any]],
    before: Mapping[MachineName, OperatedMachine],
    next_number: int,
    now: float,
) -> tuple[dict[MachineName, OperatedMachine], int]:
    """The pods as machines, with the times and numbers of those before; the next number."""
    found: dict[MachineName, OperatedMachine] = {}
    named = {str(_section(pod, "metadata").get("name")): pod for pod in pods}
    for name, pod in sorted(named.items()):
        state, reason = _pod_state(pod)
        was = before.get(MachineName(name))
        if was is None:
            number, next_number = next_number, next_number + 1
        else:
            number = was.number
        machine = OperatedMachine(
            name=MachineName(name),
            number=number,
            group=GroupName(str(_section(_section(pod, "metadata"), "labels").get(GROUP_LABEL))),
            host=str(_section(pod, "spec").get("nodeName") or ""),
            node=str(_section(pod, "status").get("podIP") or ""),
            state=state,
            since_s=now,
            reason=reason,
        )
        if was is not None and was.state is state:
            machine = replace(machine, since_s=was.since_s)
        found[machine.name] = machine
    return found, next_number


def _pod_state(pod: Mapping[str, Any]) -> tuple[MachineState, str]:
    status = _section(pod, "status")
    phase = str(status.get("phase") or "Pending")
    if _section(pod, "metadata").get("deletionTimestamp"):
        return MachineState.STOPPING, "Kubernetes removes its pod"
    if phase in ("Failed", "Succeeded"):
        said = printable(str(status.get("message") or status.get("reason") or phase), LONGEST)
        return MachineState.STOPPING, f"its pod has ended: {said}"
    conditions = [each for each in _list(status, "conditions") if isinstance(each, Mapping)]
    by_type = {each.get("type"): each for each in conditions}
    if _status(by_type.get("Ready")) == "True":
        return MachineState.READY, "its pod is ready"
    for container in _list(status, "containerStatuses"):
        waiting = _section(_section(container, "state"), "waiting")
        if waiting.get("reason"):
            return MachineState.STARTING, f"its pod waits: {_said(waiting)}"
    scheduled = by_type.get("PodScheduled")
    if scheduled is not None and _status(scheduled) == "False":
        return MachineState.STARTING, f"its pod has no node: {_said(scheduled)}"
    return MachineState.STARTING, f"its pod is {phase.lower()}"


def _section(of: Any, key: str) -> Mapping[str, Any]:
    found = of.get(key) if isinstance(of, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _list(of: Mapping[str, Any], key: str) -> list[Any]:
    found = of.get(key)
    return found if isinstance(found, list) else []


def _number(of: Mapping[str, Any], key: str) -> int:
    found = of.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0
