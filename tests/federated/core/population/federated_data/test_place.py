"""A site's place survives JSON, and no other JSON becomes one."""

from __future__ import annotations

from typing import Any

import pytest

from fedpilot.federated.core.population.federated_data.errors import UnionError
from fedpilot.federated.core.population.federated_data.place import Place
from unions import union_of


def test_a_place_comes_back_from_json() -> None:
    place = union_of(east={}, west={"ids": ["a", "b", "c"]}).place_of("west")
    assert Place.from_json(place.to_json()) == place


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"first": 4}, id="beyond the population"),
        pytest.param({"clients": -1}, id="negative"),
        pytest.param({"more": 1}, id="a key too many"),
        pytest.param({"pattern": None}, id="no pattern"),
    ],
)
def test_a_wrong_place_is_refused(change: dict[str, Any]) -> None:
    values = union_of(east={}, west={}).place_of("west").to_json()
    with pytest.raises(UnionError, match="wanted"):
        Place.from_json({**values, **change})
