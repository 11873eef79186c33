"""A new database for each test, in SQLite and in a PostgreSQL that they share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpilot.mediator.server.store import Store
from postgres import database, excused, postgres


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """One PostgreSQL for all of them."""
    if why := excused():
        pytest.skip(why)
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A new database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'mediator.sqlite'}"
        return
    with database(request.getfixturevalue("server")) as name:
        yield name


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store(url) as made:
        yield made


@pytest.fixture
def postgresql_url(server: str) -> Iterator[str]:
    with database(server) as name:
        yield name
