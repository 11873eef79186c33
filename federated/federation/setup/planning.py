"""The plan of a loaded config, before anything starts or once its gang is reserved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.planning.document import as_options
from ...core.planning.feasibility import Shortfall, vnodes_of
from ...errors import NotFeasible
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


def fitting(
    config: RunConfig,
    request: GangRequest,
    sites: Sequence[PlannedSite],
    *,
    at_mediator: bool = False,
) -> dict[str, int] | Shortfall:
    """The vnodes of each site that takes part, or why the gang does not fit."""
    return vnodes_of(sites, gang_wish(request, config), sites_wish(config, at_mediator=at_mediator))


def not_feasible(shortfall: Shortfall) -> NotFeasible:
    """The error of a gang that does not fit."""
    return NotFeasible(
        shortfall.wanted,
        shortfall.found,
        shortfall.fits,
        tuple(as_options(shortfall.settings)),
    )
