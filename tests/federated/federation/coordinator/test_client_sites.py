"""What the journal says of the sites of clients is read as it was written, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedpilot.federated.errors import RunRefused
from fedpilot.federated.federation.coordinator.client_sites import ClientSites
from fedpilot.mediator.core.assignment import ClientMove

MOVE = ClientMove(round_number=3, origin="b", to="a", clients=(range(5, 6),), reason="why")
SITES = ClientSites(
    shares={"a": (range(4), range(5, 6)), "b": (range(4, 5), range(6, 8)), "c": ()},
    given={"a": 4, "b": 4, "c": 0},
    moves=(MOVE,),
)
WHERE = Path("client_sites.json")


def test_a_record_is_read_as_it_was_written() -> None:
    assert ClientSites.from_json(json.loads(json.dumps(SITES.to_json())), WHERE) == SITES


def test_the_record_of_an_earlier_version_has_no_moves() -> None:
    told = {key: SITES.to_json()[key] for key in ("format", "sites")}
    found = ClientSites.from_json(told, WHERE)
    assert found == ClientSites(shares=SITES.shares, given={}, moves=())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"format": 2}, "is of format 2", id="a later format"),
        pytest.param({"sites": [1]}, "does not say where", id="sites without names"),
        pytest.param({"sites": {"a": "x"}}, "does not say where", id="no clients"),
        pytest.param({"moves": [{"round": 3}]}, "does not say where", id="half a move"),
        pytest.param({"given": {"a": "many"}}, "does not say where", id="no number"),
    ],
)
def test_a_record_that_cannot_be_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RunRefused, match=rf"client_sites.json {said}"):
        ClientSites.from_json({**SITES.to_json(), **changes}, WHERE)


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(RunRefused, match="does not say where"):
        ClientSites.from_json(None, WHERE)
