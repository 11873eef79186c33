"""What a run asks of a site, and of how many clients an answer tells: facts for the site's policy.

All of it is read off what will be worked on, never off what a run says of itself, but for its user.
No data is loaded and no line of the user's code is run: whether that may be is yet to be judged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedpilot.mediator import Payload, SiteContext
from fedpilot.mediator.core.policy import Wants

from ..algorithms import algorithm_of
from ..config.schema import RunConfig
from ..core.algorithm import Needs
from ..core.participation import asked
from ..core.sampling import share
from ..core.union import Place
from ..sources import own_code
from ..starting import gang_request
from ..user_code import IN_A_SPEC, code_of


def wants(spec: Payload, site: SiteContext) -> Wants:
    """What a spec asks of a site. CodeRefused for code that is none."""
    config = RunConfig.model_validate(spec.header["config"], strict=False)
    user = spec.header.get("user")
    said = user if isinstance(user, dict) else {}
    request = gang_request(config, "")
    search = [*sys.path, *map(str, spec.header.get("paths", ()))]
    code = code_of(spec, config, search)
    comes = IN_A_SPEC in spec.header or bool(spec.header.get("paths"))
    here = code.digest if own_code(config) else ""
    return Wants(
        user=str(said.get("name", "")),
        role=str(said.get("role", "")),
        datasets=tuple(sorted(_datasets(config, site))),
        model=config.model.model_type,
        code_digest=code.installed_digest if comes else here,
        brought_code=code.archive_digest if comes else "",
        vnodes=request.workers or 1,
        resources=request.resources,
        cohort=_cohort(config, spec),
    )


def _datasets(config: RunConfig, site: SiteContext) -> set[str]:
    """Declared data sets that a run reads: by name, or by an option that says where they lie."""
    if config.data.from_ is not None:
        return {config.data.dataset or ""}
    named = [Path(text).resolve() for text in _texts(config.data.options)]
    found = set()
    for name, declared in site.data.items():
        if declared["path"] is not None:
            lies = Path(declared["path"]).resolve()
            if any(lies.is_relative_to(path) or path.is_relative_to(lies) for path in named):
                found.add(name)
    return found


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            if value and "\0" not in value:
                yield value
        case list():
            for each in value:
                yield from _texts(each)
        case dict():
            for each in value.values():
                yield from _texts(each)


def _cohort(config: RunConfig, spec: Payload) -> int | None:
    """The most clients of this site in one round; 1 where each of them is told of by itself."""
    if algorithm_of(config.federation).needs is Needs.EVERY_UPDATE:
        return 1
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
    """How many clients an answer is about; a single client's counts as one of one."""
    header = answer.header
    match answer.kind:
        case "partial":
            clients = int(header["partial"]["clients"])
            return min(clients, 1) if "updates" in header["partial"] else clients
        case "tally":
            return 0 if header.get("on") == "test" else int(header.get("clients", 1))
        case "trained":
            return 1
    return 0
