"""The plan of a loaded config, before anything starts or once its gang is reserved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedpilot.mediator.core.assignment import Assignment, NotAssignable

from ...core.planning.document import as_options
from ...core.planning.feasibility import Shortfall, vnodes_of
from ...core.planning.plan import Plan, planned
from ...errors import ConfigError, NotFeasible
from ...prepare.planning import gang_wish, plan_inputs, sites_wish

if TYPE_CHECKING:
    from fedpilot.mediator import GangRequest

    from ...config.schema import RunConfig
    from ...core.planning.measured import Measured
    from ...core.planning.plan import PlanInputs
    from ...core.planning.sites import PlannedSite
    from .loaded_config import LoadedConfig


def inputs_of_plan(loaded: LoadedConfig, name: str, like: Measured | None = None) -> PlanInputs:
    """All that decides a plan besides its sites."""
    return plan_inputs(
        loaded.config,
        loaded.inputs,
        name=name,
        cohort=loaded.cohort_size,
        kept_bytes=loaded.bytes_of_updates,
        facts=loaded.model_facts,
        like=like,
    )


def plan_of(
    inputs: PlanInputs,
    sites: Sequence[PlannedSite],
    vnodes: Mapping[str, int],
    assignment: Assignment | None = None,
) -> Plan:
    """The plan of a run; ConfigError if its strategy leaves clients without a site."""
    try:
        return planned(inputs, sites, vnodes, assignment)
    except NotAssignable as error:
        raise ConfigError.about(
            "federation.assignment", str(error), "`capacity`, `locality` or `round_robin`"
        ) from error


def fitting(
    config: RunConfig,
    request: GangRequest,
    sites: Sequence[PlannedSite],
    *,
    at_mediator: bool = False,
) -> dict[str, int] | Shortfall:
    """The vnodes of each site that takes part, or why the gang does not fit."""
    return vnodes_of(sites, gang_wish(request), sites_wish(config, at_mediator=at_mediator))


def not_feasible(shortfall: Shortfall) -> NotFeasible:
    """The error of a gang that does not fit."""
    return NotFeasible(
        shortfall.wanted,
        shortfall.found,
        shortfall.fits,
        tuple(as_options(shortfall.settings)),
    )
