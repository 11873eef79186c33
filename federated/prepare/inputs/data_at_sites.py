"""The inputs of a run over data at sites: for its coordinator, and for a site's part."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedpilot.mediator.core.rules.disclosure import Declaration, Found, disclosed
from fedpilot.mediator.errors import PolicyRefused

from ...config.schema import RunConfig
from ...core.population.federated_data.declarations import Declared
from ...core.population.federated_data.errors import UnionError
from ...core.population.federated_data.place import Place, digest_of_ids, ids_of
from ...core.population.federated_data.site_partitions import Elsewhere, SiteClients
from ...core.population.federated_data.union import Union, united
from ...core.population.partitions.disjoint import natural
from ...core.user_code.registry import RegistryError
from ...data import DataError
from ...data.declared import load_declared, survey
from ...errors import ConfigError, DataUnusable
from ..grouping import groups_of
from ..vnode_classes import check_used, classes_of, rules_of
from .blame import blaming
from .model import build_model
from .run_inputs import RunInputs, SiteData, affordable, inputs_of

log = logging.getLogger(__name__)


def gather_declared(config: RunConfig, declared: Mapping[str, Any]) -> RunInputs:
    """A coordinator's inputs, from the sites' declarations, by site.

    It has no samples: two blank ones show their shape and type. Raises ConfigError for a mismatch.
    """
    name = config.data.dataset or ""
    allowed = "data sets that sites declare, alike at all of them"
    with blaming("data.dataset", allowed, UnionError):
        known = {site: Declared.from_json(site, name, each) for site, each in declared.items()}
        union = united(name, known, pattern=config.federation.client_id_pattern)
    _check_disclosed(config, union)
    schema = union.schema
    x = np.zeros((2, *schema.input_shape), dtype=schema.dtype)
    y = np.zeros(2, dtype=np.int64)
    data = SiteData(x, y, x[:0], y[:0], schema.num_classes, Elsewhere(union))
    classes = None
    if all(rule.column is None for rule in rules_of(config)):
        classes = classes_of(config, data.partition, {}, range(union.population))
        check_used(config, classes)
    model, here = build_model(config, data), range(0)
    made = inputs_of(
        config,
        data,
        model,
        data_digest=union.digest,
        here=here,
        union=union,
        classes=classes,
    )
    return affordable(config, made)


def gather_here(
    config: RunConfig, site: str, declarations: Mapping[str, Any], place: Place
) -> RunInputs:
    """The inputs of a site's part: the data that its admin declared.

    Raises DataUnusable, without details, for other data; PolicyRefused for what must stay.
    """
    name = place.dataset
    if name not in declarations:
        raise DataUnusable(site, name, "no such data set is declared here")
    declaration = Declaration.from_json(name, declarations[name])
    if config.outputs.client_digests and not declaration.disclose.ids:
        raise PolicyRefused(
            site,
            f"datasets.{name}.disclose.ids of site.yaml",
            "`outputs.client_digests: true`, which tells of each client",
            "what does not name clients",
        )
    try:
        dataset = load_declared(declaration)
        owners = natural(dataset.client_ids)
    except Exception:
        log.exception("data set %s cannot be loaded", name)
        raise DataUnusable(site, name, "it is not as declared, or cannot be read") from None
    ids = [owners.client_id(index) for index in range(owners.number_of_clients)]
    told = digest_of_ids(ids) if declaration.disclose.ids else ""
    if (len(ids), told) != (place.clients, place.ids_digest):
        problem = "its clients are not those that it had when the site joined; join anew"
        raise DataUnusable(site, name, problem)
    called = ids_of(site, ids if declaration.disclose.ids else None, len(ids), place.pattern)
    held = SiteClients(place.first, place.population, replace(owners, ids=called))
    assert declaration.num_classes is not None  # checked with the declaration
    no_tests = dataset.x[:0], dataset.y[:0]
    try:
        groups = groups_of(config, held, dataset.y, dataset.columns, held.here)
    except ConfigError as error:
        found = error.problems[0].found
        raise DataUnusable(site, name, f"its clients make no groups: {found}") from None
    try:
        classes = classes_of(config, held, dataset.columns, held.here)
    except ConfigError as error:
        found = error.problems[0].found
        raise DataUnusable(site, name, f"its clients have no vnode class: {found}") from None
    data = SiteData(dataset.x, dataset.y, *no_tests, declaration.num_classes, held, groups)
    try:
        model = build_model(config, data)
    except ConfigError:
        log.exception("the model does not take data set %s", name)
        raise DataUnusable(site, name, "the model, or the loss, does not take it") from None
    return inputs_of(
        config, data, model, data_digest=dataset.digest, here=held.here, classes=classes
    )


def disclosed_by(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a site of this machine discloses of a data set; empty if it does not declare the set.

    Raises ConfigError for data that differ from the declaration.
    """
    if name not in data:
        return {}
    with blaming("sites.site_files", "data as declared", DataError, RegistryError, OSError):
        found = survey(data[name])
    return {name: disclosed(Declaration.from_json(name, data[name]), Found(**found), secret=b"")}


def _check_disclosed(config: RunConfig, union: Union) -> None:
    """Refuse a config that needs what sites do not disclose."""
    if config.outputs.client_digests and union.without_ids:
        sites = ", ".join(union.without_ids)
        raise ConfigError.about(
            "outputs.client_digests",
            found=f"true, and the ids of the clients do not leave site {sites}",
            allowed="false, or data whose `disclose.ids` is `exact` in `site.yaml`",
        )
