"""What a run asks of the sites of a mediator, for its place in the queue of runs."""

from __future__ import annotations

from fedpilot.mediator.core.run_queue import RunAsk

from ..config.schema import RunConfig
from .gang_request import gang_request


def run_ask(config: RunConfig) -> RunAsk:
    """What a run of this config asks of the sites of a mediator."""
    request, sites = gang_request(config), config.sites
    return RunAsk(
        vnode=request.resources,
        workers=request.least if request.groups else request.workers,
        at_least=request.at_least,
        at_most=request.at_most,
        groups=request.groups,
        count=sites.count,
        min_sites=sites.min_sites,
        required=tuple(sites.required),
        data="" if config.data.from_ is None else config.data.dataset or "",
        project=request.project,
        priority_class=request.priority_class,
    )
