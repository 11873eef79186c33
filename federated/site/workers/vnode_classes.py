"""What the workers of each vnode class are made of, and compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...config.schema import ResourcesConfig, VNodeClassConfig
from ...config.schema.vnode_classes import device_of, threads_of
from ...core.proof.environment_diff import Facts
from .node import NodeSettings


def made_of(
    resources: ResourcesConfig, settings: NodeSettings, data: Any
) -> Sequence[Any] | Mapping[str, Sequence[Any]]:
    """A worker's arguments, with the threads and the device of its vnode; by class, if any."""

    def args(size: ResourcesConfig | VNodeClassConfig) -> Sequence[Any]:
        return replace(settings, threads=threads_of(size), device=device_of(size)), data

    if resources.groups is None:
        return args(resources)
    return {each.name: args(each) for each in resources.groups}


def likes_of(header: Mapping[str, Any]) -> Mapping[str, Facts]:
    """From a spec: by class, the facts of a worker that later ones must be like.

    An empty name stands for all classes.
    """
    by_class = header.get("like_by_class") or {}
    return {**by_class, **({"": header["like"]} if header.get("like") else {})}
