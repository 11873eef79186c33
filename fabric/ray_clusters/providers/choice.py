"""Which provider has the machines of a declared Ray cluster."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from ...core.ray_clusters.declaration import DeclaredRayCluster
from ...errors import SpecError
from .protocol import MachineProvider
from .redis_storage import RedisStorage, login_of

OPERATED = ("existing", "kuberay")
"""Those whose machines another operator starts and heals."""
PROVIDERS = ("local", "ssh", *OPERATED)
"""Those that this version has."""


def check_provided(declared: DeclaredRayCluster) -> None:
    """SpecError if this version does not have the provider."""
    if declared.provider not in PROVIDERS:
        raise SpecError(
            f"Ray cluster {declared.name!r}: this version has the providers "
            f"{', '.join(PROVIDERS)}, not {declared.provider}"
        )
    if declared.provider == "kuberay":
        _check_kubernetes(declared)
    if declared.provider in OPERATED:
        return  # its operator knows all keys, and its machines bring their own Ray
    options = declared.fault_tolerance
    for given, key in (
        (options is not None and declared.provider != "local", "spec.gcsFaultToleranceOptions"),
        (declared.in_tree_autoscaling, "spec.enableInTreeAutoscaling"),
    ):
        if given:
            raise SpecError(
                f"Ray cluster {declared.name!r}: the provider {declared.provider} of this version "
                f"cannot do `{key}`; leave it out"
            )
    if options is not None:
        try:
            login_of(options, "any")
        except SpecError as error:
            raise SpecError(f"Ray cluster {declared.name!r}: {error}") from error
    _check_version(declared)


def _check_kubernetes(declared: DeclaredRayCluster) -> None:
    """SpecError without the client of Kubernetes, which is an extra."""
    try:
        found = importlib.util.find_spec("kubernetes.aio") is not None
    except ImportError:
        found = False
    if not found:
        raise SpecError(
            f"Ray cluster {declared.name!r}: the provider kuberay needs the client of Kubernetes, "
            "version 37 or newer; install `fedpilot[kuberay]`"
        )


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
    """SpecError if a change of a declaration would lose machines, a resource, or Ray's state."""
    if before.provider != after.provider:
        raise SpecError(
            f"Ray cluster {after.name!r}: its provider is {before.provider}, and cannot become "
            f"{after.provider}; delete the cluster, and declare it anew"
        )
    if before.provider not in OPERATED and _state_of(before) != _state_of(after):
        raise SpecError(
            f"Ray cluster {after.name!r}: where its control plane keeps its state cannot change "
            "(`spec.gcsFaultToleranceOptions`); delete the cluster, and declare it anew"
        )
    for was, now, key in (
        (before.kube_context, after.kube_context, "spec.fedpilot.kubeContext"),
        (before.namespace, after.namespace, "metadata.namespace"),
    ):
        if was != now:
            raise SpecError(
                f"Ray cluster {after.name!r}: `{key}` is {was or 'not given'}, and cannot become "
                f"{now or 'none'}: its resource would stay where it is; delete the cluster, and "
                "declare it anew"
            )


def _state_of(declared: DeclaredRayCluster) -> tuple[str, str] | None:
    """Where the state of its control plane is."""
    options = declared.fault_tolerance
    return None if options is None else (options.redis_address, options.namespace)


def version_note(declared: DeclaredRayCluster) -> str:
    """A warning if the pods of a cluster have another Ray than this site; else empty."""
    here = importlib.metadata.version("ray")
    wanted = declared.head.template.ray_version
    if declared.provider not in OPERATED or wanted in ("", here):
        return ""
    return (
        f"`spec.rayVersion` is {wanted}, and this site has Ray {here}: drivers of this site and "
        "the autoscaler need the same version"
    )


def provider_of(declared: DeclaredRayCluster, uid: str, folder: Path) -> MachineProvider:
    """The provider of a cluster; `folder` has a folder for each. SpecError."""
    check_provided(declared)
    if declared.provider == "ssh":
        from .ssh import SshMachines

        return SshMachines(declared, uid, folder / uid)
    from .local import LocalMachines

    options = declared.fault_tolerance
    storage = RedisStorage(options, uid) if options is not None else None
    return LocalMachines(uid, folder / uid, storage=storage)
