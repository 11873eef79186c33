"""What a site discloses is taken as it is meant, or refused in the site's name."""

from __future__ import annotations

from typing import Any

import pytest

from fedpilot.federated.core.population.federated_data.declarations import Declared
from fedpilot.federated.core.population.federated_data.errors import BadDeclaration
from unions import SCHEMA, told


def declared(site: str, **more: Any) -> Declared:
    return Declared.from_json(site, "scans", told(**more))


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([], id="no section"),
        pytest.param(told(clients=0), id="no clients"),
        pytest.param(told(clients=1 << 50), id="too many clients"),
        pytest.param(told(clients=True), id="a truth value"),
        pytest.param(told(residency="here"), id="another residency"),
        pytest.param(told(ids=["a", "b"]), id="too few ids"),
        pytest.param(told(ids=["b", "a", "c"]), id="ids out of order"),
        pytest.param(told(ids=["a", "a", "b"]), id="an id twice"),
        pytest.param(told(ids=["a", "b", 3]), id="an id that is a number"),
        pytest.param(told(ids=["a", "b", "c\n"]), id="an id with a line end"),
        pytest.param(told(ids=["a", "b", "c" * 300]), id="a long id"),
        pytest.param(told(counts=[1, 2]), id="too few counts"),
        pytest.param(told(counts=[1, 2, -3]), id="a negative count"),
        pytest.param(told(client_labels=[[1] * 10] * 2), id="labels of too few clients"),
        pytest.param(told(client_labels=[[1] * 9] * 3), id="too few labels"),
        pytest.param(told(client_labels=[[1] * 9 + [-1]] * 3), id="a negative count of a label"),
        pytest.param(told(client_labels=[[1 << 40] * 10] * 3), id="too many samples of a label"),
        pytest.param(told(client_labels=7), id="labels that are a number"),
        pytest.param(told(schema=None), id="no schema"),
        pytest.param(told(schema={**SCHEMA, "input_shape": [1 << 20, 1 << 20]}), id="a huge one"),
        pytest.param(told(schema={**SCHEMA, "input_shape": []}), id="no dimensions"),
        pytest.param(told(schema={**SCHEMA, "input_shape": [-1]}), id="a negative length"),
        pytest.param(told(schema={**SCHEMA, "dtype": "object"}), id="objects"),
        pytest.param(told(schema={**SCHEMA, "num_classes": None}), id="no classes"),
    ],
)
def test_what_a_site_cannot_mean_is_refused(values: Any) -> None:
    with pytest.raises(BadDeclaration, match="site paris declares data set scans"):
        Declared.from_json("paris", "scans", values)


def test_a_site_without_a_right_name_is_refused() -> None:
    with pytest.raises(BadDeclaration, match="the site's name may have"):
        declared("../paris")
