"""The RayCluster resource that a declaration becomes, and how a live one differs from it.

The resource is applied by server-side apply, so fedpilot owns the keys that it declares, and no
others. Labels say which declaration has made it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ...core.ray_clusters.operated import OperatedDeclaration
from ...spec.ray_cluster.document import RayClusterDocument

UID = "fedpilot/uid"
"""The label with the uid of the declaration that has made a resource."""
MANAGED_BY = "app.kubernetes.io/managed-by"
FIELD_MANAGER = "fedpilot"
APPLIED = "fedpilot/applied"
"""The annotation with the digest of what was applied."""
GCS_PORT = "6379"
DEFAULTS: Mapping[str, object] = {
    "replicas": 0,
    "numOfHosts": 1,
    "priority": 0,
    "protocol": "TCP",
}
"""What the API server fills in within lists, by KubeRay's definition of the resource."""
AUTOSCALED = ("replicas", "scaleStrategy")
"""The keys of a group that Ray's own autoscaler writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeRayDeclaration:
    """What is declared, as KubeRay gets it."""

    name: str
    uid: str
    """Of the declaration."""
    resource: Mapping[str, Any]
    """The resource, without `metadata.uid`, `resourceVersion` and digest."""
    operated: OperatedDeclaration
    autoscaled: bool
    """Whether Ray's own autoscaler writes the groups' `AUTOSCALED`."""
    head_port: str
    secret: str
    """The secret with the cluster's token; empty if it has none."""

    @classmethod
    def of(
        cls, document: RayClusterDocument, uid: str, namespace: str, *, deleted: bool
    ) -> KubeRayDeclaration:
        declared = document.declared
        resource = _resource(document, uid, namespace)
        in_tree = declared.in_tree_autoscaling
        auth = resource["spec"].get("authOptions")
        has_token = (
            auth is not None
            and auth.get("mode") != "disabled"
            and not auth.get("enableK8sTokenAuth")
        )
        return cls(
            name=declared.name,
            uid=uid,
            resource=resource,
            operated=OperatedDeclaration(
                digest=_digest(resource, in_tree),
                workers=None
                if in_tree
                else sum(each.wanted * each.hosts_per_replica for each in declared.workers),
                suspended=declared.suspended,
                deleted=deleted,
            ),
            autoscaled=in_tree,
            head_port=declared.head.template.parameters.get("port", GCS_PORT),
            secret=((auth or {}).get("secretName") or declared.name) if has_token else "",
        )

    def body(self, live: Mapping[str, Any] | None) -> dict[str, Any]:
        """What is applied over a live resource, or as a new one.

        The uid of a live resource is a precondition. Lists are one value for the API server, which
        compares them as a whole with what other writers own. So they have the defaults that the
        server has filled in, and what Ray's own autoscaler writes, as the live resource has it: its
        version is a precondition then.
        """
        body: dict[str, Any] = json.loads(json.dumps(self.resource))
        body["metadata"]["annotations"][APPLIED] = self.operated.digest
        if live is not None:
            body["metadata"]["uid"] = live["metadata"]["uid"]
            body["spec"] = with_defaults_of(body["spec"], live["spec"])
            if self.autoscaled:
                body["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
                _keep_autoscaled(body, live)
        return body

    def differs(self, live: Mapping[str, Any]) -> str:
        """The first key of a live resource that is not as it is declared; empty if all are."""
        body: dict[str, Any] = json.loads(json.dumps(self.resource))
        if self.autoscaled:
            _keep_autoscaled(body, live)
        for section in ("metadata", "spec"):
            found = first_difference(body[section], live.get(section), section)
            if found:
                return found
        return ""


def _resource(document: RayClusterDocument, uid: str, namespace: str) -> dict[str, Any]:
    resource: dict[str, Any] = json.loads(json.dumps(document.manifest))
    metadata = resource["metadata"]
    metadata["namespace"] = namespace
    metadata["labels"] = {**metadata.get("labels", {}), MANAGED_BY: FIELD_MANAGER, UID: uid}
    metadata["annotations"] = dict(metadata.get("annotations", {}))
    spec = resource["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        if group.get("resources"):  # text for Kubernetes, a number or text for people
            group["resources"] = {name: str(each) for name, each in group["resources"].items()}
    return resource


def _digest(resource: Mapping[str, Any], autoscaled: bool) -> str:
    kept = json.loads(json.dumps(resource))
    for group in kept["spec"]["workerGroupSpecs"] if autoscaled else ():
        for key in AUTOSCALED:
            group.pop(key, None)
    return sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def _keep_autoscaled(body: dict[str, Any], live: Mapping[str, Any]) -> None:
    groups = live["spec"].get("workerGroupSpecs") or ()
    there = {each.get("groupName"): each for each in groups if isinstance(each, Mapping)}
    for group in body["spec"]["workerGroupSpecs"]:
        mine = there.get(group["groupName"])
        for key in AUTOSCALED if mine is not None else ():
            group.pop(key, None)
            if mine is not None and key in mine:
                group[key] = mine[key]


def first_difference(declared: Any, live: Any, at: str) -> str:
    """The first place where live content lacks what is declared; keys that only it has are fine."""
    if isinstance(declared, Mapping):
        if not isinstance(live, Mapping):
            return "" if not declared and live is None else at
        for key in sorted(declared):
            if found := first_difference(declared[key], live.get(key), f"{at}.{key}"):
                return found
        return ""
    if isinstance(declared, Sequence) and not isinstance(declared, str):
        there = [] if live is None else live
        if not isinstance(there, Sequence) or len(there) != len(declared):
            return at
        pairs = enumerate(zip(declared, there, strict=True))
        inside = (first_difference(mine, its, f"{at}[{i}]") for i, (mine, its) in pairs)
        return next(filter(None, inside), "")
    same = declared == live and isinstance(declared, bool) == isinstance(live, bool)
    return "" if same or (not declared and live is None) else at


def with_defaults_of(declared: Any, live: Any, *, inside: bool = False) -> Any:
    """Declared content with the defaults that a live one has in the sections of its lists."""
    if isinstance(declared, Mapping) and isinstance(live, Mapping):
        found = {
            key: with_defaults_of(each, live.get(key), inside=inside)
            for key, each in declared.items()
        }
        if inside:
            found |= {k: v for k, v in live.items() if k not in found and _is_default(k, v)}
        return found
    if isinstance(declared, list) and isinstance(live, list) and len(declared) == len(live):
        pairs = zip(declared, live, strict=True)
        return [with_defaults_of(mine, its, inside=True) for mine, its in pairs]
    return declared


def _is_default(key: str, value: object) -> bool:
    """Whether a key means the same as none."""
    if isinstance(value, bool | str) and not value:
        return True
    default = DEFAULTS.get(key)
    return default is not None and value == default and not isinstance(value, bool)


def head_address(live: Mapping[str, Any], port: str) -> str | None:
    """`host:port` of the head's GCS; None while it has no address."""
    head = (live.get("status") or {}).get("head") or {}
    for key in ("serviceIP", "podIP"):
        address = head.get(key)
        if isinstance(address, str) and address not in ("", "None"):
            return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    return None


def autoscaled_counts(live: Mapping[str, Any] | None) -> dict[str, int]:
    """How many replicas a live resource asks for, by group."""
    groups = live["spec"].get("workerGroupSpecs") if live is not None else None
    return {
        str(each.get("groupName")): int(each["replicas"])
        for each in groups or ()
        if isinstance(each, Mapping) and isinstance(each.get("replicas"), int)
    }
