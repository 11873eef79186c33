"""What a run asks of a site, and how many clients an answer is about: facts for the site's policy.

They come from the work itself; only the user comes from what the run states. The policy has not
allowed the run yet, so no data is loaded and none of the user's code runs. Simulations that would
read declared data are refused: only `data.from: sites` gets it, behind the disclosure gate.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedpilot.mediator import Payload, SiteContext
from fedpilot.mediator.core.rules.wants import Simulated, Wants
from fedpilot.mediator.errors import PolicyRefused

from ...algorithms import algorithm_of
from ...config.schema import RunConfig
from ...config.telling import understood
from ...core.algorithm import Needs
from ...core.population.federated_data.place import Place
from ...core.population.sampling import share
from ...core.rounds.participation import asked
from ...prepare.gang_request import gang_request
from ...prepare.user_code.user_code import IN_A_SPEC, code_of
from ...prepare.user_code.user_sources import installed_code, own_code
from .disclosure_gate import told_of

CROSSES = "a graph, on which each client's model goes to the sites of its neighbors"
"""What other sites see of single clients."""


def wants(spec: Payload, site: SiteContext) -> Wants:
    """What a spec asks of a site; CodeRefused for an invalid archive, PolicyRefused as above."""
    config = understood(spec.header)
    simulated = config.data.from_ is None
    if simulated:
        _refuse_reaching(config, site)
    user = spec.header.get("user")
    said = user if isinstance(user, dict) else {}
    request = gang_request(config)
    search = [*sys.path, *map(str, spec.header.get("paths", ()))]
    code = code_of(spec, config, search)
    comes = IN_A_SPEC in spec.header or bool(spec.header.get("paths"))
    here = code.digest if own_code(config) else ""
    return Wants(
        user=str(said.get("name", "")),
        role=str(said.get("role", "")),
        datasets=() if simulated else (config.data.dataset or "",),
        simulated=_simulated(config) if simulated else None,
        model=config.model.model_type,
        code_digest=code.installed_digest if comes else here,
        installed_code=installed_code(config, code.files if comes else ()),
        brought_code=code.archive_digest if comes else "",
        gang=request.gang,
        cohort=_cohort(config, spec),
        crosses=CROSSES if config.federation.is_graph else "",
    )


def _simulated(config: RunConfig) -> Simulated:
    """A simulation's loader, and the paths and files in its options."""
    options = config.data.options
    named = [text for text in _texts(options) if os.sep in text or os.path.exists(text)]
    named += [given for given in [options.get("path")] if isinstance(given, str)]
    reads = sorted({str(Path(text).resolve()) for text in named})
    return Simulated(loader=config.data.dataset_type or "", reads=tuple(reads))


def _refuse_reaching(config: RunConfig, site: SiteContext) -> None:
    """Raise PolicyRefused for a simulation that would read what the site's admin declared."""
    for name, declared in sorted(site.data.items()):
        found = _reaching(config, declared)
        if found is not None:
            raise PolicyRefused(
                site.name,
                "datasets",
                f"a simulation whose {found} data set {name}",
                f"`data.from: sites` with `data.dataset: {name}`",
            )


def _reaching(config: RunConfig, declared: Mapping[str, Any]) -> str | None:
    """How a simulation would read a declared data set, in words; None if it does not.

    By a function of the loader's module, or by an option that names the data, a part of them, or a
    folder above.
    """
    loader, own = config.data.dataset_type or "", str(declared["dataset_type"])
    if ":" in own and loader.partition(":")[0] == own.partition(":")[0]:
        return f"loader `{loader}` is of the module that loads"
    lies = _places(declared)
    for text in _texts(config.data.options):
        named = Path(text).resolve()
        if any(named.is_relative_to(place) or place.is_relative_to(named) for place in lies):
            return f"`data.options` name `{text}`, which leads to"
    return None


def _places(declared: Mapping[str, Any]) -> list[Path]:
    """Files and folders in a declaration: its path, the list of ids, options that name some."""
    given = [text for text in _texts(declared["options"]) if _is_path(text)]
    named = [declared["path"], declared["clients"].get("file"), *given]
    return [Path(text).resolve() for text in named if text is not None]


def _is_path(text: str) -> bool:
    """Whether an option's text names a file or folder, not a mode or column."""
    names = os.sep in text or os.path.exists(text)
    return names and Path(text).resolve() != Path(Path(text).anchor)


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            if value and "\0" not in value:
                yield value
        case list():
            for each in value:
                yield from _texts(each)
        case dict():
            for key, each in value.items():
                yield from _texts(key)
                yield from _texts(each)


def _cohort(config: RunConfig, spec: Payload) -> int | None:
    """The most clients of this site in one round; 1 where each is reported by itself."""
    if algorithm_of(config.federation).needs is Needs.EVERY_UPDATE:
        return 1
    if config.outputs.client_digests or config.federation.is_graph:
        return 1  # on a graph, neighbors at other sites get its model
    federation, here = config.federation, None
    population = federation.number_of_clients
    if config.data.from_ is not None:
        place = Place.from_json(spec.header.get("place"))
        population, here = place.population, place.clients
    if population is None:
        return None
    size = population if federation.clients_per_round is None else federation.clients_per_round
    if federation.client_sampling_rate is not None:
        size = share(population, federation.client_sampling_rate)
    size = asked(size, config.participation.over_sampling, population)
    return size if here is None else min(size, here)


def covered(answer: Payload) -> int:
    """How many clients an answer is about; a single client's counts as 1."""
    match answer.kind:
        case "partial":
            one_by_one = "updates" in answer.header["partial"] or answer.header.get("digests")
            return min(told_of(answer), 1) if one_by_one else told_of(answer)
        case "tally":
            return told_of(answer)
        case "trained" | "states" | "nodes_evaluated":
            return 1
    return 0
