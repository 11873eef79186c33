"""What is applied, and how a live resource differs from it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fedpilot.fabric.ray_clusters.kuberay.manifest import (
    APPLIED,
    UID,
    KubeRayDeclaration,
    first_difference,
    head_address,
    with_defaults_of,
)
from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of
from kuberay_site import kuberay


def declaration(**spec: Any) -> KubeRayDeclaration:
    document = kuberay(**spec)
    return KubeRayDeclaration.of(ray_cluster_of(document), "uid-1", "team", deleted=False)


@pytest.mark.parametrize(
    ("declared", "live", "where"),
    [
        pytest.param({"a": 1}, {"a": 1, "b": 2}, "", id="keys of others are fine"),
        pytest.param({"a": 1}, {"a": 2}, "at.a", id="another value"),
        pytest.param({"a": 1}, {}, "at.a", id="a key that is missing"),
        pytest.param({"a": True}, {"a": 1}, "at.a", id="a number is no truth value"),
        pytest.param({"a": {}}, {}, "", id="an empty section is none"),
        pytest.param({"a": False}, {}, "", id="false is none"),
        pytest.param([{"a": 1}], [{"a": 1, "b": 0}], "", id="defaults within a list"),
        pytest.param([{"a": 1}], [{"a": 1}, {"a": 2}], "at", id="a longer list"),
        pytest.param([1, 2], [1, 3], "at[1]", id="another element"),
        pytest.param({"a": {"b": 1}}, {"a": "x"}, "at.a", id="another form"),
        pytest.param(None, None, "", id="nothing"),
    ],
)
def test_the_first_key_that_is_not_as_declared_is_named(
    declared: object, live: object, where: str
) -> None:
    assert first_difference(declared, live, "at") == where


def test_an_apply_over_a_live_resource_names_its_uid_and_has_its_defaults() -> None:
    declared = declaration()
    live = copy.deepcopy(declared.body(None))
    live["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    group = live["spec"]["workerGroupSpecs"][0]
    group |= {"numOfHosts": 1, "priority": 5, "suspend": False}
    body = declared.body(live)
    assert body["metadata"]["uid"] == "u"
    assert "resourceVersion" not in body["metadata"]
    applied = body["spec"]["workerGroupSpecs"][0]
    assert (applied["numOfHosts"], applied["suspend"]) == (1, False)
    assert "priority" not in applied  # 5 is no default: it is not declared any more
    assert body["metadata"]["labels"][UID] == "uid-1"
    assert body["metadata"]["annotations"][APPLIED] == declared.operated.digest


def test_defaults_outside_of_lists_are_left_to_the_server() -> None:
    assert with_defaults_of({"a": 1}, {"a": 1, "b": False}) == {"a": 1}


def test_amounts_of_a_group_are_text_for_kubernetes() -> None:
    document = kuberay()
    document["spec"]["headGroupSpec"] = {
        **document["spec"]["headGroupSpec"],
        "rayStartParams": {},
        "resources": {"CPU": 2},
    }
    found = KubeRayDeclaration.of(ray_cluster_of(document), "u", "team", deleted=False)
    assert found.body(None)["spec"]["headGroupSpec"]["resources"] == {"CPU": "2"}


def test_what_rays_autoscaler_writes_is_no_change_of_the_declaration() -> None:
    def digest(replicas: int, in_tree: bool) -> str:
        document = kuberay(enableInTreeAutoscaling=in_tree)
        document["spec"]["workerGroupSpecs"][0]["replicas"] = replicas
        read = ray_cluster_of(document)
        return KubeRayDeclaration.of(read, "u", "team", deleted=False).operated.digest

    assert digest(2, True) == digest(3, True)
    assert digest(2, False) != digest(3, False)


@pytest.mark.parametrize(
    ("head", "address"),
    [
        pytest.param({"serviceIP": "10.0.0.1", "podIP": "10.1.0.1"}, "10.0.0.1:6379", id="service"),
        pytest.param({"serviceIP": "None", "podIP": "10.1.0.1"}, "10.1.0.1:6379", id="headless"),
        pytest.param({"podIP": "fd00::1"}, "[fd00::1]:6379", id="IPv6"),
        pytest.param({}, None, id="no head"),
        pytest.param(None, None, id="no status"),
    ],
)
def test_the_head_is_at_its_service_or_its_pod(head: object, address: str | None) -> None:
    assert head_address({"status": {"head": head}}, "6379") == address
