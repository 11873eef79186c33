"""The mediator's database and its disk go away in mid-run, in different rounds and for long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import store_drills
from coordinated import CONFIG
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation
from postgres import Server, server

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

TIMES = 10


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the same run in one process."""
    folder = tmp_path_factory.mktemp("alone")
    rounds = {**CONFIG["federation"], "rounds": store_drills.ROUNDS}
    values = {**CONFIG, "federation": rounds, "outputs": {"curves": False, "folder": str(folder)}}
    with Federation(values, cluster=FakeCluster([fake_machine("a", CPU=8)])) as federation:
        return federation.run().digest


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Server]:
    with server() as made:
        yield made


@pytest.mark.parametrize("time", range(TIMES))
@pytest.mark.parametrize("seconds", [7.0, 60.0])
def test_a_database_that_is_away_changes_no_model(
    seconds: float, time: int, tmp_path: Path, postgresql: Server, alone: str
) -> None:
    at_round = 1 + time % store_drills.ROUNDS
    drill = store_drills.database_away(tmp_path / "m", postgresql, seconds, at_round)
    assert asyncio.run(drill) == alone


@pytest.mark.parametrize("time", range(TIMES))
@pytest.mark.parametrize("seconds", [3.0, 30.0])
def test_a_mediator_whose_disk_is_full_changes_no_model(
    seconds: float, time: int, tmp_path: Path, alone: str
) -> None:
    at_round = 1 + time % store_drills.ROUNDS
    drill = store_drills.mediator_full(tmp_path / "m", seconds, at_round)
    assert asyncio.run(drill) == alone
