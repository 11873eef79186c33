"""The sites of a mediator as a plan sees them: those that a run would begin with.

A site tells its mediator how much its machines have in all, so each counts as an equal part of it.
Its policy may allow a run less; only the site knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fedpilot.fabric import Machine, Resources
from fedpilot.fabric.core.records import MachineId
from fedpilot.mediator.core.health import SiteState, takes_new_work

from ...core.planning.measured import link_of, pace_of
from ...core.planning.sites import PlannedSite, in_order
from ...core.rounds.site_changes import chosen

if TYPE_CHECKING:
    from fedpilot.mediator.client.client import MediatorClient

    from ...config.schema import RunConfig

MOST_MACHINES = 100_000
Document = Mapping[str, Any]
Disclosed = dict[str, Mapping[str, Any]]


def planned_at(
    client: MediatorClient, config: RunConfig
) -> tuple[tuple[PlannedSite, ...], Disclosed | None]:
    """The mediator's sites that a run would begin with, and what they disclose of its data.

    The second is None where the config's data is loaded here.
    """
    ready = {str(each.get("name")): each for each in client.list_sites() if _is_ready(each)}
    disclosed: Disclosed | None = None
    if config.data.from_ is not None:
        wanted = config.data.dataset or ""
        told = {name: client.show_site(name).get("data") for name in sorted(ready)}
        disclosed = {
            name: data[wanted]
            for name, data in told.items()
            if isinstance(data, dict) and wanted in data
        }
        ready = {name: each for name, each in ready.items() if name in disclosed}
    names = chosen(ready, config.sites.count, config.sites.required)
    sites = in_order(planned(name, ready[name], client.address) for name in names)
    if disclosed is not None:
        disclosed = {name: disclosed[name] for name in names}
    return sites, disclosed


def planned(name: str, document: Document, mediator: str) -> PlannedSite:
    """A site, by what `fedpilot site show --json` prints."""
    return PlannedSite(
        name=name,
        machines=tuple(_machines(name, document.get("capacity"))),
        labels_known=False,
        seconds_per_sample=pace_of(document),
        link=link_of(document),
        from_=f"the mediator at {mediator}",
    )


def _is_ready(document: Document) -> bool:
    with suppress(ValueError):
        return takes_new_work(SiteState(str(document.get("state"))))
    return False


def _machines(site: str, capacity: Any) -> Iterable[Machine]:
    told = capacity if isinstance(capacity, Mapping) else {}
    count, total = told.get("machines"), told.get("total")
    count = min(count, MOST_MACHINES) if type(count) is int and count > 0 else 1
    each: dict[str, float] = {}
    for name, amount in total.items() if isinstance(total, Mapping) else ():
        if isinstance(amount, int | float) and math.isfinite(amount) and amount > 0:
            each[str(name)] = float(amount) / count
    if each.get("GPU"):
        each["GPU"] = float(math.floor(each["GPU"]))
    for number in range(count if each else 0):
        name = f"{site}/{number}"
        yield Machine(id=MachineId(name), hostname=name, total=Resources.of(each))
