"""The plan of a run in its folder, and what the run measured beside it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...core.planning.document import document_of
from ...core.planning.measured import compared, measured
from ...core.planning.plan import planned
from ...core.planning.sites import PlannedSite
from ..run_folder.folder import RunFolder, replace_text
from ..setup.loaded_config import LoadedConfig
from ..setup.planning import inputs_of_plan

if TYPE_CHECKING:
    from ..sites.gang_session import GangSession

log = logging.getLogger(__name__)

FILE = "plan.json"
RESERVED = "the reserved gang"


def write_plan(folder: RunFolder, loaded: LoadedConfig, gang: GangSession) -> None:
    """Write the plan over the vnodes that the sites hold and the clients that they have."""
    membership = gang.running("a plan needs a gang").membership
    vnodes = {site: promise.vnodes for site, promise in membership.promises.items()}
    sites = [
        PlannedSite(name=site, workers=promise.vnodes, from_=RESERVED, link=promise.link)
        for site, promise in membership.promises.items()
    ]
    plan = planned(inputs_of_plan(loaded, folder.run_id), sites, vnodes, membership.assignment)
    text = json.dumps(document_of(plan), indent=2, ensure_ascii=False)
    replace_text(folder.path / FILE, text + "\n")


def beside_plan(folder: RunFolder, epochs: int) -> dict[str, Any]:
    """Facts for the manifest: what a round took and moved, beside the plan.

    None without a plan, or with one that cannot be read: it only explains.
    """
    path = folder.path / FILE
    if not path.exists():
        return {}
    found = measured(folder.run_id, folder.rows(), folder.traffic(), epochs=epochs)
    try:
        plan: Mapping[str, Any] = json.loads(path.read_text())
        return {"plan": compared(plan, found)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s is no plan of this version: %s", path, error)
        return {}
