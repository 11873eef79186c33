"""Whether this version can have a cluster at KubeRay, and what it warns of."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from fedpilot.fabric.core.ray_clusters.declaration import DeclaredRayCluster
from fedpilot.fabric.errors import SpecError
from fedpilot.fabric.ray_clusters.declarations.records import (
    RayClusterUid,
    Revision,
    StoredDeclaration,
)
from fedpilot.fabric.ray_clusters.providers.choice import (
    check_provided,
    check_same_provider,
    version_note,
)
from fedpilot.fabric.ray_clusters.resources import resource_of
from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of
from ray_cluster_documents import Document, ray_cluster


def declared(**spec: object) -> DeclaredRayCluster:
    return ray_cluster_of(ray_cluster("kuberay", **spec)).declared


def in_namespace(name: str) -> DeclaredRayCluster:
    document: Document = ray_cluster("kuberay")
    document["metadata"]["namespace"] = name
    return ray_cluster_of(document).declared


def test_without_its_extra_the_provider_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> ModuleSpec | None:
        if name.startswith("kubernetes"):
            raise ModuleNotFoundError("No module named 'kubernetes'")
        return real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    stored = StoredDeclaration(
        name=declared().name,
        uid=RayClusterUid("u"),
        document=ray_cluster("kuberay"),
        revision=Revision(1),
        by="ann",
        at=1.0,
    )
    with pytest.raises(SpecError, match=r"install `fedpilot\[kuberay\]`"):
        resource_of(stored, declared(), tmp_path)


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({"gcsFaultToleranceOptions": {"redisAddress": "r:6379"}}, id="another Redis"),
        pytest.param({"enableInTreeAutoscaling": True}, id="Ray's own autoscaler"),
        pytest.param({"rayVersion": "2.40.0"}, id="another Ray"),
    ],
)
def test_kuberay_does_what_our_own_machines_do_not(keys: dict[str, object]) -> None:
    check_provided(declared(**keys))


def test_another_ray_in_the_pods_is_a_warning() -> None:
    assert "2.40.0" in version_note(declared(rayVersion="2.40.0"))
    assert version_note(declared()) == ""


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        pytest.param(in_namespace("a"), in_namespace("b"), "metadata.namespace", id="a namespace"),
        pytest.param(
            declared(),
            declared(fedpilot={"kubeContext": "x"}),
            "spec.fedpilot.kubeContext",
            id="an API server",
        ),
    ],
)
def test_a_cluster_cannot_move(
    before: DeclaredRayCluster, after: DeclaredRayCluster, key: str
) -> None:
    with pytest.raises(SpecError, match=key):
        check_same_provider(before, after)
