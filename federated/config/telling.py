"""Sends a coordinator's config to sites, whose fedpilot may be older or newer than its own.

Keys at their default are left out, since an older site refuses keys that it does not know. The
coordinator sends its defaults along: a site with other defaults refuses, as its model would differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from ..errors import VersionsDiffer
from .resolved import EXPLAINING, deciding
from .schema import Graph, RunConfig

DISTRIBUTION = "fedpilot"


def at_sites(config: RunConfig) -> RunConfig:
    """A config as sites get it, without code that the coordinator alone runs.

    They get the graph itself, as one from a file, and adapted ones with the rounds' orders.
    """
    federation, graph = config.federation, config.graph
    if graph is not None:
        graph = graph.model_copy(update={"adapt": None, "adapt_every": None})
    if federation.has_own_topology:
        graph = (graph or Graph()).model_copy(update={"file": federation.topology})
        federation = federation.model_copy(update={"topology": "custom"})
    if federation.has_own_assignment:
        federation = federation.model_copy(update={"assignment": None})
    return config.model_copy(update={"federation": federation, "graph": graph, "sweep": None})


def told(config: RunConfig) -> dict[str, Any]:
    """A config as the header of a spec."""
    config = at_sites(config)
    given: dict[str, Any] = config.model_dump(mode="json", exclude_defaults=True)
    for key in EXPLAINING:
        section, _, name = key.partition(".")
        given.get(section, {}).pop(name, None)
    meant = {key: value for key, value in _deciding(config).items() if not _has(given, key)}
    return {"config": given, "defaults": meant, "version": version(DISTRIBUTION)}


def understood(header: Mapping[str, Any]) -> RunConfig:
    """Read a config from a spec's header; VersionsDiffer if it means another run here, or none."""
    theirs = str(header.get("version") or "an earlier one")
    try:
        config = RunConfig.model_validate(header["config"], strict=False)
    except ValidationError as error:
        unknown = [each for each in error.errors() if each["type"] == "extra_forbidden"]
        if not unknown:
            raise
        keys = ", ".join(sorted(".".join(map(str, each["loc"])) for each in unknown))
        raise VersionsDiffer(theirs, version(DISTRIBUTION), f"it does not know {keys}") from error
    mine = _deciding(config)
    differing = [
        f"{key} is {mine[key]!r} here and {value!r} there"
        for key, value in sorted(dict(header.get("defaults") or {}).items())
        if key in mine and mine[key] != value
    ]
    if differing:
        raise VersionsDiffer(theirs, version(DISTRIBUTION), f"by default {'; '.join(differing)}")
    return config


def _deciding(config: RunConfig) -> dict[str, Any]:
    plain: dict[str, Any] = to_jsonable_python(deciding(config))
    return plain


def _has(given: Any, key: str) -> bool:
    for name in key.split("."):
        if not isinstance(given, Mapping) or name not in given:
            return False
        given = given[name]
    return True
