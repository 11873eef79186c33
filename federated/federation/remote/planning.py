"""The plan of a config file, over this machine's sites or over a mediator's; it starts nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config import load_config, read_config
from ...core.planning.feasibility import Shortfall
from ...core.planning.what_if import with_changes
from ...errors import ConfigError
from ...prepare.gang_request import gang_request
from ..setup.feasibility import fitting
from ..sites.planned_sites import planned_here

if TYPE_CHECKING:
    from fedpilot.mediator.client.client import MediatorClient

    from ...config.schema import RunConfig
    from ...core.planning.measured import Measured
    from ...core.planning.plan import Plan
    from ..run_folder.folder import RunFolder


def plan_file(
    path: Path,
    overrides: Sequence[str],
    *,
    client: MediatorClient | None = None,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    like: str | None = None,
) -> Plan | Shortfall:
    """The plan of a config over a mediator's sites, or over those of this machine.

    Whether the gang fits is decided before data are loaded. `add` and `remove` change the sites,
    as in `what_if`; `like` is an earlier run, whose measurements count in the place of estimates.
    Raises ConfigError, BadWhatIf, RunRefused, and the errors of a mediator's client.
    """
    config, name, placed = read_config(path, overrides)
    disclosed: Mapping[str, Mapping[str, Any]] | None = None
    if client is not None:
        from .planned_sites import planned_at

        sites, disclosed = planned_at(client, config)
    else:
        sites = planned_here(config)
    sites = with_changes(sites, add, remove) if add or remove else sites
    wishes = config
    if add or remove:  # these are the sites, however many the config names
        wishes = config.model_copy(
            update={"sites": config.sites.model_copy(update={"count": None})}
        )
    vnodes = fitting(wishes, gang_request(config), sites, at_mediator=client is not None)
    if isinstance(vnodes, Shortfall):
        return vnodes

    from ...core.planning.plan import planned  # with NumPy: that a gang does not fit is said before
    from ...prepare.user_code.user_code import code_here
    from ...prepare.user_code.user_sources import import_paths
    from ..setup.loaded_config import LoadedConfig, inputs_of
    from ..setup.planning import inputs_of_plan
    from ..sites.sources import disclosed_to, sites_here

    earlier = None if like is None else measured_in(config, like)
    paths = import_paths(path)
    sys.path.extend(each for each in paths if each not in sys.path)
    try:
        with redirect_stdout(sys.stderr):  # output of the user's own modules as they load
            if client is None:
                disclosed = disclosed_to(config, sites_here(config, None, None))
            loaded = LoadedConfig(
                config=config,
                code=code_here(config),
                inputs=inputs_of(config, disclosed),
                paths=paths,
                located=placed,
            )
            loaded.check_shares(len(loaded.among(tuple(vnodes))))
            loaded.settle_execution(lambda *_, **__: None)
        among = set(loaded.among(tuple(vnodes)))
        vnodes = {site: count for site, count in vnodes.items() if site in among}
        return planned(inputs_of_plan(loaded, name, earlier), sites, vnodes)
    except ConfigError as error:
        raise placed(error) from error


def measured_in(config: RunConfig, run: str) -> Measured:
    """What an earlier run measured, by its id or its folder; raises RunRefused."""
    from ...core.planning.measured import measured
    from ..run_folder.folder import RunFolder, find_run

    folder = RunFolder(find_run(Path(config.outputs.folder), run, path_first=True))
    before = load_config(folder.path / "config.yaml")
    found = measured(
        folder.run_id,
        folder.rows(),
        folder.traffic(),
        epochs=before.training.number_of_epochs,
        sites=_sites_of_plan(folder),
        like=_other(before, config),
    )
    if _moves(before) != _moves(config):
        return replace(found, model_bytes=None, sum_bytes=None)
    return found


def _sites_of_plan(folder: RunFolder) -> dict[str, Any]:
    """The sites of a run's plan, by name; none without a plan that can be read."""
    from ..runs.run_plan import FILE

    try:
        plan = json.loads((folder.path / FILE).read_text())
        return {str(site["name"]): site for site in plan["sites"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _other(before: RunConfig, now: RunConfig) -> str:
    """What differs that decides a run's pace, in words."""
    ignored = {"learning_rate", "number_of_epochs", "execution_reason", "execution", "chunk_size"}
    ignored |= {"execution_model"}
    differs = {
        "another model": before.model != now.model,
        "other data": (before.data.dataset_type, before.data.options, before.data.dataset)
        != (now.data.dataset_type, now.data.options, now.data.dataset),
        "other training": before.training.model_dump(exclude=ignored)
        != now.training.model_dump(exclude=ignored),
        "other vnodes": _sizes(before) != _sizes(now),
    }
    return " and ".join(words for words, differ in differs.items() if differ)


def _sizes(config: RunConfig) -> list[tuple[float, float]]:
    return [(each.cpus_per_worker, each.gpus_per_worker) for each in config.resources.classes]


def _moves(config: RunConfig) -> list[Any]:
    """All that decides the bytes that a site gets and gives in a round, but for what crosses."""
    federation, data = config.federation, config.data
    return [
        config.model,
        federation.aggregation_strategy,
        federation.topology,
        (data.dataset_type, data.options, data.dataset),
    ]
