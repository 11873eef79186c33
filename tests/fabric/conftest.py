"""A reconciler to try things on, which never waits for real time to pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpilot.fabric.manager import group_provisioner
from reconciler_world import World


@pytest.fixture(scope="session", autouse=True)
def no_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_provisioner, "ROOM_POLL_S", 0.0)
        yield


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "ledger.sqlite")
    yield world
    world.file.close()
