"""A runner's server for each test that wants one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from served_runners import FakeRunner


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[FakeRunner]:
    made = FakeRunner(tmp_path / "runner")
    yield made
    made.die()
