"""A config's request to a cluster, and its Ray: a private one, or one that is running."""

from __future__ import annotations

import gc
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedpilot.fabric import Resources, SchedulingPolicy, local_machine
from fedpilot.mediator import GangRequest
from fedpilot.mediator.core.reservation import VNodeClass

from ..config.schema import ResourcesConfig, RunConfig, VNodeClassConfig, WorkersRange
from ..core.planning.sites import GangWish, SitesWish

if TYPE_CHECKING:
    from fedpilot.fabric import Cluster, Machine, RayCluster
    from fedpilot.fabric.spec.ray_cluster.document import RayClusterDocument

    from .inputs.run_inputs import RunInputs

SMALLEST_OBJECT_STORE = 256 << 20
PRELOAD = "fedpilot.federated.site.workers.node"
"""Module that a private Ray's workers import while idle."""


def gang_request(config: RunConfig, *names: str) -> GangRequest:
    """A site's part of the gang, named after `names`."""
    resources = config.resources
    classes = [_vnode_class(each) for each in resources.classes]
    several = resources.groups is not None
    only = VNodeClass() if several else classes[0]
    return GangRequest(
        name="-".join([*names, secrets.token_hex(3)]),
        resources=only.resources,
        workers=only.workers,
        at_least=only.at_least,
        at_most=only.at_most,
        groups=tuple(classes) if several else (),
        policy=SchedulingPolicy(resources.placement_group_strategy),
        timeout_s=resources.reserve_timeout,
        project=resources.project or "",
        pool=resources.pool or "",
        priority_class=resources.priority_class or "",
    )


def _vnode_class(size: ResourcesConfig | VNodeClassConfig) -> VNodeClass:
    """The vnodes of one size."""
    each = {"CPU": size.cpus_per_worker, "GPU": size.gpus_per_worker}
    if size.memory_per_worker is not None:
        each["memory"] = float(size.memory_per_worker)
    workers = size.workers
    made = VNodeClass(
        resources={name: amount for name, amount in each.items() if amount},
        workers=workers if isinstance(workers, int) else None,
    )
    if isinstance(workers, WorkersRange):
        made = replace(made, at_least=workers.min, at_most=workers.max)
    if isinstance(size, VNodeClassConfig):
        made = replace(made, name=size.name, labels=size.labels)
    return made


def object_store_bytes(inputs: RunInputs) -> int:
    """Bytes that a run's samples and models need in a Ray of its own."""
    model = sum(array.nbytes for array in inputs.initial.values())
    return 2 * inputs.data.nbytes + 16 * model


def declared_ray(config: RunConfig) -> RayClusterDocument | None:
    """What the config's file declares of a Ray cluster, if it has one. BadFile, SpecError."""
    if config.resources.ray.cluster is None:
        return None
    from fedpilot.fabric.ray_clusters.own_cluster import declared_in

    return declared_in(Path(config.resources.ray.cluster))


def begin_ray(config: RunConfig) -> RayCluster | None:
    """Begin to start a run's private Ray, and workers that import PyTorch meanwhile.

    Returns None if the config names another Ray. The caller closes it.
    """
    from fedpilot.fabric import RayCluster

    ray = config.resources.ray
    if not ray.is_private:
        return None
    return RayCluster.starting(
        ray.num_cpus,
        ray.num_gpus,
        SMALLEST_OBJECT_STORE,
        processes=first_processes(gang_request(config), local_machine(ray.num_cpus, ray.num_gpus)),
        preload=[PRELOAD],
    )


def first_processes(request: GangRequest, machine: Machine) -> int:
    """Count the workers that a private Ray on this machine starts at once: those of the gang."""
    left, count = machine.total["CPU"], 0
    for each in request.classes:
        cpus = max(1, Resources.of({"CPU": 1.0, **each.resources})["CPU"])
        held = min(left // cpus, each.most)
        left, count = left - held * cpus, count + held
    return count


def enter_ray(
    config: RunConfig,
    store: int,
    begun: RayCluster | None,
    declared: RayClusterDocument | None,
    undo: ExitStack,
) -> Cluster:
    """Return the Ray that the config names, or a private one with `store` bytes for objects.

    A cluster that is `declared` starts for it. Uses `begun`, from `begin_ray`, if it has enough
    room; the caller closes it, and has checked that a private one could hold the gang.
    """
    from fedpilot.fabric import RayCluster

    ray, patience_s = config.resources.ray, config.resources.start_timeout
    if declared is not None:
        from fedpilot.fabric.ray_clusters.own_cluster import connected

        return undo.enter_context(connected(declared, patience_s))
    if ray.address is not None:
        return undo.enter_context(RayCluster.connect(ray.address, ray.auth_mode, patience_s))
    if begun is not None and store <= SMALLEST_OBJECT_STORE:
        begun.wait(patience_s)
        return begun
    if begun is not None:  # its object store is too small for these data
        begun.close()
    return undo.enter_context(
        RayCluster.embedded(
            num_cpus=ray.num_cpus,
            num_gpus=ray.num_gpus,
            object_store_memory=max(SMALLEST_OBJECT_STORE, store),
            timeout_s=patience_s,
        )
    )


@contextmanager
def uncollected() -> Iterator[None]:
    """Suspend garbage collection while PyTorch creates its million objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def set_aside() -> Iterator[None]:
    """Exempt all present objects from garbage collection, which Ray starts now and then.

    A pass over PyTorch's million objects takes 0.15 s. Respects a `gc.freeze` of the user's own.
    """
    ours = not gc.get_freeze_count()
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


def gang_wish(request: GangRequest, config: RunConfig | None = None) -> GangWish:
    """A site's part of a gang, as a plan sees it; smaller classes are proposed for a config."""
    several = bool(request.groups)
    groups = None if config is None else config.resources.groups
    return GangWish(
        each=Resources.of(request.resources),
        policy=request.policy,
        workers=request.workers,
        at_least=request.least if several else request.at_least,
        at_most=request.most if several else request.at_most,
        classes=request.groups,
        sections=tuple(
            each.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
            for each in groups or ()
        ),
    )


def sites_wish(config: RunConfig, *, at_mediator: bool) -> SitesWish:
    """The sites that a config asks for; on this machine, there are as many as it says."""
    sites = config.sites
    return SitesWish(
        count=sites.count if at_mediator else None,
        least=sites.min_sites,
        required=tuple(sites.required),
    )
