"""What is known of a site's declared Ray clusters, as JSON documents for people and scripts."""

from __future__ import annotations

from typing import Any

from ...core.ray_clusters.declaration import RayClusterName
from ...errors import NoSuchRayCluster
from .records import RoleName, StoredDeclaration
from .store import RayClusterStore

LIFECYCLE_MANAGER = RoleName("lifecycle-manager")
"""The role of the process that starts and ends machines."""
AUTOSCALER = RoleName("autoscaler")
"""The role of the process that changes how many machines are declared."""
UNMANAGED = "no lifecycle manager runs: start one with `fedpilot raycluster serve`"


def find(store: RayClusterStore, name: str) -> StoredDeclaration:
    """The declaration of that name. NoSuchRayCluster."""
    found = store.find(RayClusterName(name))
    if found is None:
        raise NoSuchRayCluster(name, [each.name for each in store.declarations()])
    return found


def is_managed(store: RayClusterStore) -> bool:
    """Whether a lifecycle manager runs now."""
    return store.is_held(LIFECYCLE_MANAGER)


def summary(store: RayClusterStore, stored: StoredDeclaration, managed: bool) -> dict[str, Any]:
    """A cluster with the counts of its groups.

    Its state is `declared` until a manager has seen this revision.
    """
    status = store.status(stored.uid) or {}
    return {
        "name": stored.name,
        "uid": stored.uid,
        "revision": stored.revision,
        "by": stored.by,
        "at": stored.at,
        "deleted": stored.deleted,
        "provider": (stored.document.get("spec", {}).get("fedpilot") or {}).get(
            "provider", "local"
        ),
        "state": status.get("state", "declared"),
        "since": status.get("since", stored.at),
        "seen_revision": status.get("revision"),
        "address": status.get("address"),
        "token_file": status.get("token_file"),
        "auth": status.get("auth", "token"),
        "stuck": status.get("stuck", status.get("state") == "refused"),
        "groups": status.get("groups", {}),
        "hosts_silent": status.get("hosts_silent", {}),
        "reason": status.get("reason", "") if managed else UNMANAGED,
    }


def environment_of(found: dict[str, Any]) -> dict[str, str] | None:
    """The variables by which Ray and fedpilot use a cluster; None before it has an address."""
    if not found["address"]:
        return None
    address = {"RAY_ADDRESS": str(found["address"])}
    if found["auth"] == "disabled":
        return {**address, "RAY_AUTH_MODE": "disabled"}
    if not found["token_file"]:
        return None
    return {**address, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(found["token_file"])}


def details(store: RayClusterStore, stored: StoredDeclaration) -> dict[str, Any]:
    """A cluster with its machines, and its declaration."""
    machines = sorted(store.machines(stored.uid).values(), key=lambda each: int(each["number"]))
    return {
        **summary(store, stored, is_managed(store)),
        "machines": [
            {
                "name": each["name"],
                "group": each["group"],
                "host": each["host"] or None,
                "state": each["state"],
                "since": each["since_s"],
                "reason": each["reason"],
                "offers": each.get("offers") or {},
                "labels": each.get("labels") or {},
            }
            for each in machines
        ],
        "declaration": dict(stored.document),
    }
