"""A tiny operator in the place of KubeRay: pods and status follow the resource, step by step."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any, Protocol

Json = dict[str, Any]


class OperatedObjects(Protocol):
    """What the operator reads and writes."""

    pods: dict[str, Json]
    secrets: dict[str, Json]
    stored: Any

    def publish(self, kind: str, document: Json) -> Json: ...

    def remove(self, name: str) -> None: ...


class FakeOperator:
    """Makes pods as declared, and status of what there is."""

    def __init__(self, objects: OperatedObjects, pause_s: float) -> None:
        self._objects, self._pause_s = objects, pause_s
        self._woken = asyncio.Event()
        self._number = 0
        self.runs = True
        self.refuses = ""
        """Why no pod can be made; empty: they can."""
        self.waits = ""
        """Why pods do not become ready; empty: they do."""
        self.conditions = True
        """Whether it has conditions, as KubeRay has since 1.3."""

    def wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            await asyncio.sleep(self._pause_s)
            for name in list(self._objects.stored) if self.runs else ():
                self._reconcile(name)

    def kill(self, pod: str) -> None:
        """End a pod, as a node that fails does."""
        del self._objects.pods[pod]
        self.wake()

    def _reconcile(self, name: str) -> None:
        """One step of one resource."""
        document = self._objects.stored[name].document
        mine = self._pods(name)
        if document["metadata"].get("deletionTimestamp"):
            if mine:
                del self._objects.pods[mine[-1]["metadata"]["name"]]
                self.wake()
            else:
                self._objects.remove(name)
            return
        spec = document["spec"]
        if spec.get("authOptions") and name not in self._objects.secrets:
            token = base64.b64encode(b"a secret").decode()
            self._objects.secrets[name] = {"auth_token": token}
        moved = self._step(name, spec)
        status = self._status(document)
        if status != document.get("status"):
            document["status"] = status
            self._objects.publish("MODIFIED", document)
        if moved:
            self.wake()

    def _pods(self, name: str, group: str = "") -> list[Json]:
        return [
            each
            for each in self._objects.pods.values()
            if each["metadata"]["labels"]["ray.io/cluster"] == name
            and group in ("", each["metadata"]["labels"]["ray.io/group"])
        ]

    def _wanted(self, spec: Json) -> Iterator[tuple[str, int, list[str]]]:
        """The groups, each with its count and the pods that have to leave."""
        off = spec.get("suspend", False)
        yield "headgroup", 0 if off else 1, []
        for group in spec.get("workerGroupSpecs", []):
            count = 0 if off or group.get("suspend") else group["replicas"] * group["numOfHosts"]
            yield (
                group["groupName"],
                count,
                group.get("scaleStrategy", {}).get("workersToDelete", []),
            )

    def _step(self, name: str, spec: Json) -> bool:
        """Make, ready or end one pod of each group; whether anything moved."""
        moved = False
        for group, count, leaving in self._wanted(spec):
            for pod in leaving:
                moved = self._objects.pods.pop(pod, None) is not None or moved
            mine = self._pods(name, group)
            if len(mine) > count:
                del self._objects.pods[mine[-1]["metadata"]["name"]]
            elif len(mine) < count and not self.refuses:
                self._make(name, group)
            elif (new := [each for each in mine if not _is_ready(each)]) and not self.waits:
                new[0]["status"] = {
                    "phase": "Running",
                    "podIP": new[0]["status"]["podIP"],
                    "conditions": [{"type": "Ready", "status": "True"}],
                }
            else:
                continue
            moved = True
        return moved

    def _make(self, name: str, group: str) -> None:
        self._number += 1
        kind = "head" if group == "headgroup" else f"{group}-worker"
        pod = f"{name}-{kind}-{self._number}"
        waiting = {"reason": self.waits, "message": "it cannot be had"}
        self._objects.pods[pod] = {
            "metadata": {
                "name": pod,
                "labels": {"ray.io/cluster": name, "ray.io/group": group},
            },
            "spec": {"nodeName": f"node-{self._number % 3}"},
            "status": {
                "phase": "Pending",
                "podIP": f"10.1.0.{self._number}",
                "containerStatuses": [{"state": {"waiting": waiting}}] if self.waits else [],
            },
        }

    def _status(self, document: Json) -> Json:
        name, spec = document["metadata"]["name"], document["spec"]
        wanted = list(self._wanted(spec))
        heads = self._pods(name, "headgroup")
        workers = [each for group, _, _ in wanted[1:] for each in self._pods(name, group)]
        ready = bool(heads) and all(map(_is_ready, heads))
        desired = sum(count for _, count, _ in wanted[1:])
        suspended = bool(spec.get("suspend")) and not heads and not workers
        whole = ready and sum(map(_is_ready, workers)) == desired == len(workers)
        before = document.get("status", {}).get("state", "")
        status = {
            "observedGeneration": document["metadata"]["generation"],
            "desiredWorkerReplicas": desired,
            "readyWorkerReplicas": sum(map(_is_ready, workers)),
            "state": "suspended" if suspended else "ready" if whole else before,
            "reason": "",
            "head": {},
        }
        if heads:
            ip = heads[0]["status"]["podIP"]
            status["head"] = {"podIP": ip, "serviceIP": ip, "serviceName": f"{name}-head-svc"}
        if self.conditions:
            status["conditions"] = [
                _condition("HeadPodReady", ready, "HeadPodRunningAndReady"),
                _condition("RayClusterSuspended", suspended, ""),
                _condition("ReplicaFailure", bool(self.refuses), "FailedCreate", self.refuses),
            ]
        return status


def _condition(kind: str, holds: bool, reason: str, message: str = "") -> Json:
    return {"type": kind, "status": str(holds), "reason": reason, "message": message}


def _is_ready(pod: Json) -> bool:
    return any(
        (each["type"], each["status"]) == ("Ready", "True")
        for each in pod["status"].get("conditions", [])
    )
