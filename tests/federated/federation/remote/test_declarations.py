"""Which sites take part in a run on data that lies at sites, and that this stays so."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import site_data
from fedpilot.federated.config import parse_config
from fedpilot.federated.config.schema import RunConfig
from fedpilot.federated.federation.remote.mediator_sites import declarations
from fedpilot.mediator import ReservationRefused
from fedpilot.mediator.coordinator.connection import MediatorConnection
from fedpilot.mediator.core.health import SiteState
from fedpilot.mediator.wire.messages import SiteStanding

SCANS = {"schema": {"input_shape": [6], "dtype": "float32", "num_classes": 3},
         "residency": "pinned", "clients": 3}  # fmt: skip


class FakeConnection:
    """Sites that are ready, with what they disclose."""

    def __init__(self, **sites: dict[str, Any]) -> None:
        self.standings = [
            SiteStanding(name=name, state=SiteState.READY, data_json=json.dumps(sets))  # type: ignore[arg-type]
            for name, sets in sites.items()
        ]
        self.asked = 0

    def wait_for_sites(
        self, least: int, required: Collection[str] = (), timeout_s: float = 60.0
    ) -> Sequence[SiteStanding]:
        self.asked += 1
        return self.standings


def found(connection: FakeConnection, kept: Path, config: RunConfig) -> Any:
    return declarations(config, cast(MediatorConnection, connection), kept)


def at_sites(**sites: Any) -> RunConfig:
    config = site_data.config([], Path("runs"))
    return parse_config({**config, "sites": sites})


THREE = {"east": {"scans": SCANS, "x-rays": SCANS}, "north": {}, "west": {"scans": SCANS}}


def test_those_that_declare_the_data_set_take_part(tmp_path: Path) -> None:
    connection = FakeConnection(**THREE)
    told = found(connection, tmp_path / "declared.json", at_sites())
    assert told == {"east": {"scans": SCANS}, "west": {"scans": SCANS}}


def test_it_is_the_same_after_an_interruption(tmp_path: Path) -> None:
    kept = tmp_path / "declared.json"
    first = found(FakeConnection(**THREE), kept, at_sites())
    later = FakeConnection(west={"scans": {**SCANS, "clients": 9}})
    assert found(later, kept, at_sites()) == first
    assert later.asked == 0


@pytest.mark.parametrize(
    ("sites", "text"),
    [
        pytest.param({"min_sites": 3}, "3 sites that declare data set scans .* found 2", id="few"),
        pytest.param({"required": ["north"]}, "north: it declares no data set", id="required"),
    ],
)
def test_too_few_sites_are_refused_by_name(
    sites: dict[str, Any], text: str, tmp_path: Path
) -> None:
    kept = tmp_path / "declared.json"
    with pytest.raises(ReservationRefused, match=text):
        found(FakeConnection(**THREE), kept, at_sites(**sites))
    assert not kept.exists()


def test_a_simulation_asks_nobody(tmp_path: Path) -> None:
    connection = FakeConnection()
    simulation = parse_config(
        {
            "federation": {"number_of_clients": 5},
            "model": {"model_type": "mlp"},
            "data": {"dataset_type": "digits"},
        }
    )
    assert found(connection, tmp_path / "declared.json", simulation) is None
    assert connection.asked == 0
