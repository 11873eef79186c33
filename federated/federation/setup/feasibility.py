"""Whether the gang of a config fits, before its data is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.planning.feasibility import Shortfall, vnodes_of
from ...errors import NotFeasible
from ...prepare.gang_request import gang_wish, sites_wish

if TYPE_CHECKING:
    from fedpilot.mediator import GangRequest

    from ...config.schema import RunConfig
    from ...core.planning.sites import PlannedSite


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
        tuple(shortfall.options),
    )
