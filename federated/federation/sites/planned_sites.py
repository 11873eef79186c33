"""The sites of this machine as a plan sees them, and the check that a gang fits them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fedpilot.fabric import Machine, local_machine

from ...core.planning.feasibility import Shortfall
from ...core.planning.sites import PlannedSite, in_order
from ...prepare.gang_request import declared_ray, gang_request
from ..setup.feasibility import fitting, not_feasible

if TYPE_CHECKING:
    from ...config.schema import RunConfig

HERE = "this machine"
SHARED = "an equal share of this machine"
DECLARED = "the most that `resources.ray.cluster` declares"
ADDRESS = "assumed as large as this machine: the Ray at `resources.ray.address` is not asked"
EXISTING = (
    "assumed as large as this machine: the Ray that `resources.ray.cluster` names is not asked"
)


def planned_here(
    config: RunConfig, names: Sequence[str] | None = None, machines: Iterable[Machine] = ()
) -> tuple[PlannedSite, ...]:
    """The config's sites on this machine, or those of these names.

    `machines` are those of the one Ray that all of them use, if it is known.
    """
    names, there = names or config.sites.names, tuple(machines)
    if there:
        return in_order(PlannedSite(name=name, machines=there, from_=HERE) for name in names)
    ray, from_ = config.resources.ray, HERE
    if (declared := declared_ray(config)) is not None:
        if declared.declared.provider == "existing":
            here = (local_machine(),)
            return in_order(PlannedSite(name=name, machines=here, from_=EXISTING) for name in names)
        most = declared.declared.largest(local_machine())
        return in_order(PlannedSite(name=name, machines=most, from_=DECLARED) for name in names)
    if ray.address is not None:
        from_ = ADDRESS
    elif len(names) > 1 and ray.num_cpus is None:
        from_ = SHARED
    machine = local_machine(*share(config, local_machine()))
    return in_order(PlannedSite(name=name, machines=(machine,), from_=from_) for name in names)


def share(config: RunConfig, machine: Machine) -> tuple[int, int]:
    """The CPUs and GPUs of a site's private Ray: those of the config, or an equal share of ours."""
    ray, count, whole = config.resources.ray, len(config.sites.names), machine.total.to_ray()
    cpus = ray.num_cpus or max(1, int(whole["CPU"]) // count)
    gpus = int(whole.get("GPU", 0)) // count if ray.num_gpus is None else ray.num_gpus
    return cpus, gpus


def check_here(config: RunConfig, names: Sequence[str], machines: Iterable[Machine] = ()) -> None:
    """Raise NotFeasible for a gang that these sites of this machine could never hold.

    A Ray that runs already decides itself. `machines`: as in `planned_here`.
    """
    if config.resources.ray.address is not None:
        return
    found = fitting(config, gang_request(config), planned_here(config, names, machines))
    if isinstance(found, Shortfall):
        raise not_feasible(found)
