"""A mapping is a config if a file could hold it, and is left as it was."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from config_files import MINIMAL
from fedpilot.federated.config import parse_config
from fedpilot.federated.errors import ConfigError


def test_a_whole_number_is_a_number() -> None:
    config = parse_config({**MINIMAL, "training": {"learning_rate": 1}})
    assert isinstance(config.training.learning_rate, float)


class Colour(enum.StrEnum):
    RED = "red"


def cyclic() -> dict[str, Any]:
    options: dict[str, Any] = {}
    options["self"] = options
    return options


@pytest.mark.parametrize(
    ("options", "key", "found"),
    [
        pytest.param({"x": {1, 2}}, "model.options.x", "a value of type `set`", id="a set"),
        pytest.param({"x": [object()]}, "model.options.x[0]", "type `object`", id="an object"),
        pytest.param({3: 4}, "model.options", "the number 3 as a key", id="a key that is no text"),
        pytest.param({"x": 10**5000}, "model.options.x", "beyond 2^63", id="a huge number"),
        pytest.param({"x": "\ud800"}, "model.options", "surrogate", id="text that is no Unicode"),
        pytest.param(cyclic(), "model.options", "more than 50 levels", id="a cycle"),
    ],
)
def test_options_are_what_a_file_could_hold(options: Any, key: str, found: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({**MINIMAL, "model": {"model_type": "mlp", "options": options}})
    (problem,) = caught.value.problems
    assert problem.key.startswith(key)
    assert found in problem.found
    assert problem.where == ""


def test_a_mapping_may_hold_tuples_and_enumerations() -> None:
    config = parse_config(
        {**MINIMAL, "model": {"model_type": "mlp", "options": {"hidden": (1, 2), "c": Colour.RED}}}
    )
    assert config.model.options == {"hidden": [1, 2], "c": "red"}


def test_a_mapping_is_left_as_it_was() -> None:
    values = {**MINIMAL, "outputs": None}
    parse_config(values, ["federation.rounds=3", "outputs.curves=false"])
    assert values == {**MINIMAL, "outputs": None}
    assert MINIMAL["federation"] == {"number_of_clients": 5}


def test_what_is_no_mapping_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config([1])  # type: ignore[arg-type]
    assert caught.value.problems[0].key == "the config"
