"""A scripted mediator to which commands are sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpilot.federated.federation import step_watch
from scripted_runs import CONFIG
from user_service import Served, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("mediator")) as served:
        yield served


@pytest.fixture
def served(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """The mediator, without runs; however slow this machine is, nobody says that he waits."""
    server.service.__init__()  # type: ignore[misc]
    monkeypatch.setenv("FEDPILOT_CONFIG_DIR", str(tmp_path / "settings"))
    monkeypatch.delenv("FEDPILOT_PROFILE", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("digits.yaml").write_text(CONFIG)
    monkeypatch.setattr(step_watch, "QUIET_S", 3600.0)
    return server
