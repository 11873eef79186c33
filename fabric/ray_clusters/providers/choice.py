"""Which provider has the machines of a declared Ray cluster."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from ...core.ray_clusters.declaration import DeclaredRayCluster
from ...errors import SpecError
from .protocol import MachineProvider

PROVIDERS = ("local", "ssh")
"""Those that this version has."""


def check_provided(declared: DeclaredRayCluster) -> None:
    """SpecError if this version does not have the provider."""
    if declared.provider not in PROVIDERS:
        raise SpecError(
            f"Ray cluster {declared.name!r}: this version has the providers "
            f"{', '.join(PROVIDERS)}, not {declared.provider}"
        )
    for given, key in (
        (declared.fault_tolerance is not None, "spec.gcsFaultToleranceOptions"),
        (declared.in_tree_autoscaling, "spec.enableInTreeAutoscaling"),
    ):
        if given:
            raise SpecError(
                f"Ray cluster {declared.name!r}: the provider {declared.provider} of this version "
                f"cannot do `{key}`; leave it out"
            )
    _check_version(declared)


def _check_version(declared: DeclaredRayCluster) -> None:
    """SpecError if another version of Ray is declared than the one that would start."""
    here = importlib.metadata.version("ray")
    for group in declared.groups:
        wanted = group.template.ray_version
        if wanted not in ("", here):
            raise SpecError(
                f"Ray cluster {declared.name!r}: `spec.rayVersion` is {wanted}, and this site has "
                f"Ray {here}; install {wanted} here, or leave the key out"
            )


def check_same_provider(before: DeclaredRayCluster, after: DeclaredRayCluster) -> None:
    """SpecError if a change of a declaration changes its provider, which would lose machines."""
    if before.provider != after.provider:
        raise SpecError(
            f"Ray cluster {after.name!r}: its provider is {before.provider}, and cannot become "
            f"{after.provider}; delete the cluster, and declare it anew"
        )


def provider_of(declared: DeclaredRayCluster, uid: str, folder: Path) -> MachineProvider:
    """The provider of a cluster; `folder` has a folder for each. SpecError."""
    check_provided(declared)
    if declared.provider == "ssh":
        from .ssh import SshMachines

        return SshMachines(declared, uid, folder / uid)
    from .local import LocalMachines

    return LocalMachines(uid, folder / uid)
