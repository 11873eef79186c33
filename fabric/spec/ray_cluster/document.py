"""A declared Ray cluster beside its document, which a store keeps and KubeRay gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...core.ray_clusters.declaration import DeclaredRayCluster

OURS = "fedpilot"
"""The sections that KubeRay does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayClusterWarning:
    """A key that has no effect, or a risk."""

    key: str
    """Dotted, such as `spec.headGroupSpec.replicas`."""
    text: str
    where: str = ""
    """`file:line`; empty for a document that is no file."""

    def __str__(self) -> str:
        return (
            f"{self.where}: {self.key}: {self.text}" if self.where else f"{self.key}: {self.text}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RayClusterDocument:
    """What a document declares, and the document."""

    declared: DeclaredRayCluster
    document: Mapping[str, Any]
    """As JSON values, with the cluster's name and all counts filled in; `ray_cluster_of` reads it
    back to an equal declaration."""
    warnings: tuple[RayClusterWarning, ...] = ()

    @property
    def manifest(self) -> dict[str, Any]:
        """The resource for Kubernetes: the document as KubeRay reads it, without fedpilot's
        sections."""
        spec = {key: _without_ours(value) for key, value in self.document["spec"].items()}
        spec.pop(OURS, None)
        head = spec.get("headGroupSpec")
        if isinstance(head, dict):
            head.pop("replicas", None)
        spec["workerGroupSpecs"] = [
            _without_ours(group) for group in self.document["spec"].get("workerGroupSpecs", [])
        ]
        metadata = _without_ours(self.document["metadata"])
        kept = {key: value for key, value in spec.items() if value is not None}
        return {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": metadata,
            "spec": kept,
        }


def _without_ours(section: Any) -> Any:
    """A section without `fedpilot`, and without keys that have no value."""
    if not isinstance(section, dict):
        return section
    return {
        key: {} if key == "template" and value == "..." else value
        for key, value in section.items()
        if key != OURS and value is not None
    }
