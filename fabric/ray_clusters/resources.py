"""What is followed of a declared Ray cluster whose machines another operator keeps."""

from __future__ import annotations

from pathlib import Path

from ..core.ray_clusters.declaration import DeclaredRayCluster
from ..spec.ray_cluster.reading import ray_cluster_of
from .declarations.records import StoredDeclaration
from .lifecycle.operated_cluster import OperatedResource
from .providers.choice import check_provided


def resource_of(
    stored: StoredDeclaration, declared: DeclaredRayCluster, folder: Path
) -> OperatedResource:
    """The resource of a cluster; `folder` has a folder for each. SpecError."""
    check_provided(declared)
    if declared.provider == "existing":
        from ..ray.control_plane.ray_nodes import RayNodes
        from .existing.existing_cluster import ExistingRayCluster

        document = ray_cluster_of(stored.document)
        return ExistingRayCluster(document=document, nodes_at=RayNodes, deleted=stored.deleted)
    from .kuberay.kuberay_cluster import KubeRayCluster

    return KubeRayCluster(
        document=ray_cluster_of(stored.document),
        uid=stored.uid,
        folder=folder / stored.uid,
        deleted=stored.deleted,
    )
