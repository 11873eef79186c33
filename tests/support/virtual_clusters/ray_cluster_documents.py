"""Documents of declared Ray clusters, and what a reader says about them."""

from __future__ import annotations

from typing import Any

from fedpilot.common.strict_yaml.errors import BadFile, Problem
from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of

Document = dict[str, Any]


def ray_cluster(provider: str = "local", **spec: Any) -> Document:
    """A head, and one to four small workers; more keys of `spec` replace these."""
    ours: Document = {"provider": provider, **spec.pop("fedpilot", {})}
    if provider == "ssh":
        ours.setdefault("hosts", ["a.example", "b.example"])
    head: Document = {"rayStartParams": {"num-cpus": "1"}}
    workers: Document = {
        "groupName": "small",
        "replicas": 2,
        "minReplicas": 1,
        "maxReplicas": 4,
        "rayStartParams": {"num-cpus": "2"},
    }
    if provider == "kuberay":
        for group in (head, workers):
            group["template"] = {"spec": {"containers": [{"name": "ray", "image": "ray:2.60.0"}]}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "team-a"},
        "spec": {
            "headGroupSpec": head,
            "workerGroupSpecs": [workers],
            "fedpilot": ours,
            **spec,
        },
    }


def with_head(provider: str = "local", **keys: Any) -> Document:
    """The usual document with more keys of the head."""
    document = ray_cluster(provider)
    document["spec"]["headGroupSpec"] |= keys
    return document


def with_workers(provider: str = "local", **keys: Any) -> Document:
    """The usual document with more keys of its group of workers."""
    document = ray_cluster(provider)
    document["spec"]["workerGroupSpecs"][0] |= keys
    return document


def container(**keys: Any) -> Document:
    """A pod template with one container of these keys."""
    return {"spec": {"containers": [keys]}}


HEAD_AT = "spec.headGroupSpec"
WORKERS_AT = "spec.workerGroupSpecs[0]"


def problems_of(document: Any, name: str = "") -> dict[str, Problem]:
    """All that is wrong with a document, by key; empty for a good one."""
    try:
        ray_cluster_of(document, name)
    except BadFile as error:
        found = error.problems
    else:
        return {}
    by_key = {each.key: each for each in found}
    assert len(by_key) == len(found), "one mistake gives one problem"
    return by_key


def warned(document: Document) -> dict[str, str]:
    """The warnings about a good document, by key."""
    return {each.key: each.text for each in ray_cluster_of(document).warnings}
