"""The mediator's database and its disk go away once each in mid-run; `tests/soak` has the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import small_disks
import store_drills
from coordinated import CONFIG
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation
from postgres import Server, excused, server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


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
    if why := excused():
        pytest.skip(why)
    with server() as made:
        yield made


def test_a_database_that_is_away_for_seven_seconds_changes_no_model(
    tmp_path: Path, postgresql: Server, alone: str
) -> None:
    drill = store_drills.database_away(tmp_path / "m", postgresql, 7.0, at_round=3)
    assert asyncio.run(drill) == alone


@pytest.mark.skipif(bool(small_disks.excused()), reason=small_disks.excused())
@pytest.mark.soak
def test_a_mediator_whose_disk_is_full_changes_no_model(tmp_path: Path, alone: str) -> None:
    assert asyncio.run(store_drills.mediator_full(tmp_path / "m", 3.0, at_round=3)) == alone
