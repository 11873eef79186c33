"""What sites are told of a run's config, which may have another fedpilot than the coordinator."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

import pytest
from pydantic import ValidationError, create_model

from fedpilot.federated.config import identity, parse_config
from fedpilot.federated.config.schema import RunConfig, Training
from fedpilot.federated.config.schema.values import Section
from fedpilot.federated.config.telling import told, understood
from fedpilot.federated.errors import VersionsDiffer

GIVEN: dict[str, Any] = {
    "federation": {"number_of_clients": 50, "clients_per_round": 20},
    "model": {"model_type": "mlp"},
    "data": {
        "dataset_type": "digits",
        "data_distribution_kind": "dirichlet",
        "dirichlet_beta": 0.5,
    },
    "training": {"learning_rate": 0.05},
    "resources": {"memory_per_worker": "2GB"},
}
LARGE = {"name": "large", "workers": 1, "labels": {"zone": "a"}, "clients": {"ids": ["a*", "b"]}}
SMALL = {"name": "small", "workers": {"min": 1, "max": 3}, "memory_per_worker": "2GB"}
NEWER = ("robustness", "traffic", "hierarchy")
"""Sections that the older site knows nothing of,"""
NEWER_KEYS = ("execution_model", "execution_reason")
"""and keys of `training`."""


def without(kind: type[Section], *names: str, **others: type[Section]) -> type[Section]:
    """A section as it was before these keys came, none of whose rules is of interest."""
    fields: dict[str, Any] = {
        name: (others.get(name, each.annotation), each)
        for name, each in kind.model_fields.items()
        if name not in names
    }
    return create_model(f"Older{kind.__name__}", __base__=Section, **fields)


def over_the_wire(header: dict[str, Any]) -> dict[str, Any]:
    found = json.loads(json.dumps(header))
    assert isinstance(found, dict)
    return found


def config(**sections: Any) -> RunConfig:
    return parse_config({**GIVEN, **sections})


def test_an_older_site_reads_a_config_that_needs_nothing_newer() -> None:
    older = without(RunConfig, *NEWER, training=without(Training, *NEWER_KEYS))
    read = older.model_validate(over_the_wire(told(config()))["config"], strict=False)
    assert read.training.learning_rate == 0.05  # type: ignore[attr-defined]
    newer = config(robustness={"max_update_norm": 3.0})
    with pytest.raises(ValidationError, match="robustness"):
        older.model_validate(over_the_wire(told(newer))["config"], strict=False)


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param({}, id="the defaults"),
        pytest.param(
            {"robustness": {"max_update_norm": 3.0}, "participation": {"quorum": 0.5}}, id="others"
        ),
        pytest.param(
            {
                "federation": {"number_of_clients": 50, "topology": "hierarchical"},
                "hierarchy": {"groups": {"by": "blocks", "count": 5}},
            },
            id="groups",
        ),
        pytest.param({"outputs": {"client_digests": True}}, id="what decides nothing"),
        pytest.param({"resources": {"groups": [LARGE, SMALL]}}, id="vnode classes"),
        pytest.param(
            {"resources": {"groups": [{**LARGE, "gpus_per_worker": 0.5}, SMALL]}},
            id="vnode classes that decide",
        ),
    ],
)
def test_a_site_of_the_same_version_reads_the_config_that_was_told(
    sections: dict[str, Any],
) -> None:
    whole = config(**sections)
    read = understood(over_the_wire(told(whole)))
    assert read == whole
    assert identity(read, "", "") == identity(whole, "", "")


def test_a_coordinator_of_before_spells_all_keys_out() -> None:
    whole = config()
    assert understood(over_the_wire({"config": whole.model_dump(mode="json")})) == whole


@pytest.mark.parametrize(
    ("section", "values", "why"),
    [
        pytest.param(
            "config",
            {"training": {"sharpness": 1}, "federation": GIVEN["federation"]},
            "it does not know training.sharpness",
            id="a key that this site does not know",
        ),
        pytest.param(
            "defaults",
            {"training.batch_size": 7},
            "by default training.batch_size is 32 here and 7 there",
            id="a default that is another one here",
        ),
    ],
)
def test_a_site_that_would_read_the_config_otherwise_names_both_versions(
    section: str, values: dict[str, Any], why: str
) -> None:
    header = over_the_wire(told(config()))
    header[section].update(values)
    header["version"] = "9.1"
    with pytest.raises(VersionsDiffer) as refused:
        understood(header)
    for part in (why, "version 9.1", f"this site's fedpilot ({version('fedpilot')})"):
        assert part in str(refused.value)
    assert str(VersionsDiffer(*refused.value.args)) == str(refused.value)


def test_a_newer_key_at_its_default_is_none_of_an_older_sites_business() -> None:
    header = over_the_wire(told(config()))
    header["defaults"]["training.sharpness"] = 0.0
    assert understood(header) == config()
