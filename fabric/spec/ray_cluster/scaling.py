"""Edits how many machines a group of a document has, and which must leave."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from difflib import get_close_matches

from fedpilot.common.strict_yaml.errors import printable

from ...core.ray_clusters.declaration import HEAD, GroupName, MachineName
from ...errors import SpecError
from .document import RayClusterDocument
from .reading import ray_cluster_of


def scaled(
    document: RayClusterDocument,
    group: GroupName,
    *,
    replicas: int | None = None,
    leaving: Sequence[MachineName] | None = None,
) -> RayClusterDocument:
    """The document with other `replicas` of a group, other `workersToDelete`, or both.

    None leaves a number, or the names, as they are. SpecError for a group that does not exist, for
    the head, for a number outside `minReplicas` to `maxReplicas`, and for a Ray that is not ours.
    """
    if document.declared.provider == "existing":
        raise SpecError(
            f"Ray cluster {document.declared.name!r}: `spec.fedpilot.provider` is existing, whose "
            f"machines fedpilot neither starts nor ends; found a number for the group "
            f"{printable(group)}; allowed: none"
        )
    names = [each.name for each in document.declared.workers]
    if group == HEAD:
        raise SpecError(f"group {HEAD!r}: wanted a group of workers; a cluster has one head")
    if group not in names:
        near = get_close_matches(group, names, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        there = ", ".join(names) or "none"
        raise SpecError(f"there is no group {printable(group)}; there are: {there}{hint}")
    place = names.index(group)
    edited = copy.deepcopy(dict(document.document))
    section = edited["spec"]["workerGroupSpecs"][place]
    if replicas is not None:
        limits = document.declared.workers[place]
        if type(replicas) is not int or not limits.least <= replicas <= limits.most:
            raise SpecError(
                f"replicas of {group}: wanted a whole number from minReplicas, which is "
                f"{limits.least}, to maxReplicas, which is {limits.most}, found {replicas!r}"
            )
        section["replicas"] = replicas
    if leaving is not None:
        section["scaleStrategy"] = {"workersToDelete": list(dict.fromkeys(leaving))}
    return ray_cluster_of(edited)
