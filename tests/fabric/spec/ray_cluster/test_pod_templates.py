"""A pod template: all of it for KubeRay, amounts and environment elsewhere, the rest by name."""

from __future__ import annotations

from typing import Any

import pytest

from fedpilot.fabric.spec.ray_cluster.pod_templates import DECIDED_BY_FEDPILOT
from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of
from ray_cluster_documents import HEAD_AT, Document, container, problems_of, warned, with_head

TEMPLATE = f"{HEAD_AT}.template"
CONTAINER = f"{TEMPLATE}.spec.containers[0]"
ENV = f"{CONTAINER}.env"


def head_with(template: Any, provider: str = "local") -> Document:
    return with_head(provider, template=template)


@pytest.mark.parametrize("template", ["...", None, {}, {"spec": {}}, {"spec": None}])
def test_an_empty_template_says_nothing(template: Any) -> None:
    document = head_with(template)
    usual = with_head()
    assert ray_cluster_of(document).declared == ray_cluster_of(usual).declared
    assert not warned(document)


def test_the_environment_is_that_of_the_first_container() -> None:
    document = head_with(container(env=[{"name": "A", "value": "1"}, {"name": "B"}]))
    assert ray_cluster_of(document).declared.head.template.environment == {"A": "1", "B": ""}


def test_names_and_images_of_pods_have_no_effect_and_a_warning() -> None:
    template = container(name="ray", image="ray:2.60.0", ports=[{"containerPort": 6379}])
    document = head_with({"metadata": {"labels": {"app": "ray"}}, **template})
    found = warned(document)
    assert set(found) == {f"{TEMPLATE}.metadata", CONTAINER}
    assert "`name`, `image`, `ports`" in found[CONTAINER]
    declared = ray_cluster_of(document).declared
    assert declared == ray_cluster_of(with_head()).declared


@pytest.mark.parametrize(
    ("template", "key"),
    [
        pytest.param({"kind": "Pod"}, f"{TEMPLATE}.kind", id="a key beside metadata and spec"),
        pytest.param({"spec": {"volumes": []}}, f"{TEMPLATE}.spec.volumes", id="volumes"),
        pytest.param(
            {"spec": {"initContainers": []}}, f"{TEMPLATE}.spec.initContainers", id="inits"
        ),
        pytest.param({"spec": {"nodeSelector": {}}}, f"{TEMPLATE}.spec.nodeSelector", id="nodes"),
        pytest.param(container(command=["sh"]), f"{CONTAINER}.command", id="a command"),
        pytest.param(container(envFrom=[]), f"{CONTAINER}.envFrom", id="an environment elsewhere"),
        pytest.param(
            {"spec": {"containers": [{}, {}]}}, f"{TEMPLATE}.spec.containers[1]", id="a sidecar"
        ),
    ],
)
def test_what_only_kubernetes_can_do_is_refused_by_name(template: Document, key: str) -> None:
    problems = problems_of(head_with(template))
    assert list(problems) == [key]
    assert "local" in problems[key].found
    assert "kuberay" in problems[key].allowed


@pytest.mark.parametrize(
    ("template", "key"),
    [
        pytest.param([], TEMPLATE, id="a list"),
        pytest.param("....", TEMPLATE, id="another text than three dots"),
        pytest.param({"spec": []}, f"{TEMPLATE}.spec", id="a spec that is a list"),
        pytest.param({"spec": {"containers": {}}}, f"{TEMPLATE}.spec.containers", id="no list"),
        pytest.param({"spec": {"containers": ["a"]}}, CONTAINER, id="a container that is text"),
        pytest.param(container(env={}), ENV, id="an environment that is a section"),
        pytest.param(container(env=["A=1"]), f"{ENV}[0]", id="a variable that is text"),
        pytest.param(container(env=[{"value": "1"}]), f"{ENV}[0]", id="a variable without a name"),
        pytest.param(
            container(env=[{"name": "A", "value": 1}]), f"{ENV}[0].value", id="a number as a value"
        ),
        pytest.param(
            container(env=[{"name": "A=B", "value": ""}]), f"{ENV}[0].name", id="a name with `=`"
        ),
        pytest.param(
            container(env=[{"name": "A", "value": "a\0"}]), f"{ENV}[0].value", id="a zero byte"
        ),
        pytest.param(
            container(env=[{"name": "A", "value": "$(B)"}]), f"{ENV}[0].value", id="a reference"
        ),
        pytest.param(
            container(env=[{"name": "A"}, {"name": "A"}]), f"{ENV}[1].name", id="a name twice"
        ),
        pytest.param(
            container(env=[{"name": "A", "valueFrom": {}}]), f"{ENV}[0].valueFrom", id="a secret"
        ),
    ],
)
def test_a_malformed_template_is_refused_at_its_key(template: Any, key: str) -> None:
    assert list(problems_of(head_with(template))) == [key]


@pytest.mark.parametrize("name", sorted(DECIDED_BY_FEDPILOT))
def test_a_variable_that_fedpilot_sets_is_refused(name: str) -> None:
    problems = problems_of(head_with(container(env=[{"name": name, "value": "x"}])))
    assert list(problems) == [f"{ENV}[0].name"]


@pytest.mark.parametrize("template", ["...", None, {}, {"spec": {"containers": []}}])
def test_kuberay_needs_a_container(template: Any) -> None:
    problems = problems_of(head_with(template, "kuberay"))
    assert list(problems) == [f"{TEMPLATE}.spec.containers"]
