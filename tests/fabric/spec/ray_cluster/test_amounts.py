"""What a machine offers comes from the places where KubeRay looks, in its order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of
from ray_cluster_documents import (
    HEAD_AT,
    Document,
    container,
    problems_of,
    warned,
    with_head,
)

GIB = 2**30


def amounts_of(document: Document) -> dict[str, float]:
    return ray_cluster_of(document).declared.head.template.amounts


def limits(**amounts: Any) -> Document:
    named = {name.replace("__", "/").replace("_", "."): each for name, each in amounts.items()}
    return container(resources={"limits": named})


@pytest.mark.parametrize(
    ("keys", "amounts"),
    [
        pytest.param(
            {"rayStartParams": {"num-cpus": 2, "num-gpus": "1", "memory": "4096"}},
            {"CPU": 2, "GPU": 1, "memory": 4096},
            id="parameters of ray start",
        ),
        pytest.param(
            {"rayStartParams": {"resources": '{"disk": 1.5}'}},
            {"disk": 1.5},
            id="custom resources as JSON",
        ),
        pytest.param(
            {"rayStartParams": {"resources": '"{\\"Custom\\": 2}"'}},
            {"Custom": 2},
            id="custom resources in KubeRay's two pairs of quotes",
        ),
        pytest.param(
            {"rayStartParams": {"resources": "'{\"Custom\": 2}'"}},
            {"Custom": 2},
            id="custom resources in a shell's quotes",
        ),
        pytest.param(
            {"resources": {"CPU": "1500m", "memory": "4Gi", "nvidia.com/gpu": 2, "disk": "500m"}},
            {"CPU": 2, "memory": 4 * GIB, "GPU": 2, "disk": 0.5},
            id="quantities of the group: CPUs and GPUs are whole, as in KubeRay",
        ),
        pytest.param(
            {"template": limits(cpu="500m", memory="1Gi", nvidia_com__gpu=1)},
            {"CPU": 1, "memory": GIB, "GPU": 1},
            id="limits of the first container",
        ),
        pytest.param(
            {"template": limits(google_com__tpu="4")}, {"TPU": 4}, id="accelerators of a container"
        ),
        pytest.param(
            {"template": container(resources={"requests": {"cpu": "3"}})},
            {"CPU": 3},
            id="requests, for CPUs without a limit",
        ),
        pytest.param(
            {"template": container(resources={"limits": {"cpu": 2}, "requests": {"cpu": 1}})},
            {"CPU": 2},
            id="limits rather than requests",
        ),
        pytest.param(
            {"rayStartParams": {"num-cpus": "4"}, "template": limits(cpu=1, memory="1Gi")},
            {"CPU": 4, "memory": GIB},
            id="a parameter rather than a limit, amount by amount",
        ),
        pytest.param(
            {"resources": {"CPU": "8"}, "template": limits(cpu=1, memory="1Gi")},
            {"CPU": 8, "memory": GIB},
            id="the group rather than a limit, amount by amount",
        ),
        pytest.param(
            {"rayStartParams": {"num-cpus": "0"}, "template": limits(cpu=1)},
            {"CPU": 0},
            id="none is an amount too, and not the host's",
        ),
        pytest.param({"rayStartParams": {}}, {}, id="nothing: the host's amounts"),
    ],
)
def test_amounts(keys: Document, amounts: dict[str, float]) -> None:
    document = with_head(**{"rayStartParams": {}, **keys})
    assert amounts_of(document) == amounts


def test_a_machine_without_cpus_starts_by_another_template_than_one_with_the_hosts() -> None:
    found = [
        ray_cluster_of(with_head(rayStartParams=given)).declared.head.template
        for given in ({"num-cpus": "0"}, {})
    ]
    assert found[0].zeros == ("CPU",)
    assert found[0].digest != found[1].digest


PARAMETER = f"{HEAD_AT}.rayStartParams"
CONTAINER = f"{HEAD_AT}.template.spec.containers[0]"


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        pytest.param({"rayStartParams": {"num-cpus": "1.5"}}, f"{PARAMETER}.num-cpus", id="half"),
        pytest.param({"rayStartParams": {"num-cpus": -1}}, f"{PARAMETER}.num-cpus", id="negative"),
        pytest.param({"rayStartParams": {"memory": "4Gi"}}, f"{PARAMETER}.memory", id="a unit"),
        pytest.param(
            {"rayStartParams": {"resources": "disk=1"}}, f"{PARAMETER}.resources", id="no JSON"
        ),
        pytest.param(
            {"rayStartParams": {"resources": '{"disk": -1}'}},
            f"{PARAMETER}.resources",
            id="a negative custom resource",
        ),
        pytest.param(
            {"rayStartParams": {"resources": '{"disk": NaN}'}},
            f"{PARAMETER}.resources",
            id="a custom resource that is no number",
        ),
        pytest.param(
            {"rayStartParams": {"resources": '{"disk": true}'}},
            f"{PARAMETER}.resources",
            id="a custom resource that is a truth value",
        ),
        pytest.param(
            {"rayStartParams": {"resources": '{"CPU": 1}'}},
            f"{PARAMETER}.resources",
            id="a CPU among custom resources",
        ),
        pytest.param(
            {"rayStartParams": {"resources": '{"node:10.0.0.1": 1}'}},
            f"{PARAMETER}.resources",
            id="a name that Ray keeps to itself",
        ),
        pytest.param(
            {"rayStartParams": {"resources": "[" * 9_000}},
            f"{PARAMETER}.resources",
            id="JSON that is nested without end",
        ),
        pytest.param(
            {"rayStartParams": {"resources": json.dumps({"a" * 20_000: 1})}},
            f"{PARAMETER}.resources",
            id="JSON without end",
        ),
        pytest.param(
            {"rayStartParams": {"num-gpus": "1"}, "resources": {"CPU": "1"}},
            f"{PARAMETER}.num-gpus",
            id="amounts in two places",
        ),
        pytest.param({"resources": {"CPU": "-1"}}, f"{HEAD_AT}.resources.CPU", id="less than none"),
        pytest.param(
            {"resources": {"cpu": "1", "CPU": "1"}}, f"{HEAD_AT}.resources.CPU", id="CPUs twice"
        ),
        pytest.param(
            {"resources": {"object_store_memory": "1Gi"}},
            f"{HEAD_AT}.resources.object_store_memory",
            id="the object store, which is a parameter",
        ),
        pytest.param(
            {"template": limits(cpu="many")}, f"{CONTAINER}.resources.limits.cpu", id="a word"
        ),
        pytest.param(
            {"template": container(resources={"limits": {"ephemeral-storage": "1Gi"}})},
            f"{CONTAINER}.resources.limits.ephemeral-storage",
            id="a limit that only Kubernetes holds",
        ),
        pytest.param(
            {"template": container(resources={"claims": []})},
            f"{CONTAINER}.resources.claims",
            id="claims, which only Kubernetes has",
        ),
        pytest.param({"template": container(resources=[])}, f"{CONTAINER}.resources", id="a list"),
        pytest.param(
            {"template": container(resources={"limits": "all"})},
            f"{CONTAINER}.resources.limits",
            id="limits that are no section",
        ),
    ],
)
def test_amounts_are_refused_at_their_key(keys: Document, key: str) -> None:
    document = with_head(**{"rayStartParams": {}, **keys})
    assert list(problems_of(document)) == [key]


def test_bytes_are_the_nearest_of_a_size_with_a_unit() -> None:
    problems = problems_of(with_head(rayStartParams={"memory": "4Gi"}))
    assert problems[f"{PARAMETER}.memory"].nearest == str(4 * GIB)


def test_a_request_of_memory_says_that_it_has_no_effect() -> None:
    template = container(resources={"requests": {"memory": "1Gi"}})
    assert f"{CONTAINER}.resources.requests" in warned(with_head(template=template))


@pytest.mark.parametrize(
    ("memory", "parameters"),
    [
        pytest.param("64Mi", {}, id="less than Ray's smallest store"),
        pytest.param("1Gi", {"object-store-memory": str(2 * GIB)}, id="less than the store given"),
    ],
)
def test_a_pod_must_hold_its_object_store(memory: str, parameters: Document) -> None:
    template = limits(memory=memory)
    document = with_head("kuberay", template=template, rayStartParams=parameters)
    assert list(problems_of(document)) == [f"{CONTAINER}.resources.limits.memory"]


class TestLabels:
    @pytest.mark.parametrize(
        "keys",
        [
            pytest.param({"labels": {"zone": "a", "ray.io/region": "b"}}, id="of the group"),
            pytest.param(
                {"rayStartParams": {"labels": "zone=a, ray.io/region=b"}}, id="in a parameter"
            ),
            pytest.param(
                {"rayStartParams": {"labels": '"zone=a,ray.io/region=b"'}}, id="in quotes"
            ),
        ],
    )
    def test_labels(self, keys: Document) -> None:
        labels = ray_cluster_of(with_head(**keys)).declared.head.template.labels
        assert labels == {"zone": "a", "ray.io/region": "b"}

    def test_labels_of_a_pod_are_no_labels_of_ray(self) -> None:
        document = with_head("kuberay")
        document["spec"]["headGroupSpec"]["template"]["metadata"] = {"labels": {"zone": "a"}}
        assert ray_cluster_of(document).declared.head.template.labels == {}

    @pytest.mark.parametrize(
        ("keys", "key"),
        [
            pytest.param({"labels": {"a b": "c"}}, f"{HEAD_AT}.labels.a b", id="a space"),
            pytest.param({"labels": {"a": "\x1b[2J"}}, f"{HEAD_AT}.labels.a", id="control codes"),
            pytest.param(
                {"labels": {"ray.io/node-id": "1"}},
                f"{HEAD_AT}.labels.ray.io/node-id",
                id="one that Ray gives itself",
            ),
            pytest.param(
                {"labels": {"a": "b"}, "rayStartParams": {"labels": "a=b"}},
                f"{PARAMETER}.labels",
                id="labels in two places",
            ),
            pytest.param(
                {"rayStartParams": {"labels": "zone"}}, f"{PARAMETER}.labels", id="no value"
            ),
            pytest.param(
                {"rayStartParams": {"labels": "a=1,a=2"}}, f"{PARAMETER}.labels", id="a label twice"
            ),
        ],
    )
    def test_labels_are_refused_at_their_key(self, keys: Document, key: str) -> None:
        problems = problems_of(with_head(**keys))
        assert list(problems) == [key]
        assert str(problems[key]).replace("\n", "").isprintable()

    def test_kuberay_takes_labels_of_the_group_only(self) -> None:
        problems = problems_of(with_head("kuberay", rayStartParams={"labels": "a=b"}))
        assert list(problems) == [f"{PARAMETER}.labels"]
