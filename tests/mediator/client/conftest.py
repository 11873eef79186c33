"""A mediator that only answers users, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedpilot.mediator.client.client import MediatorClient
from user_service import Served, connected, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("mediator")) as served:
        yield served


@pytest.fixture
def served(server: Served) -> Served:
    server.service.__init__()  # type: ignore[misc]
    return server


@pytest.fixture
def client(served: Served) -> Iterator[MediatorClient]:
    with connected(served) as made:
        yield made
