"""The last words of a dead runner are quoted, but not where they may speak of the site's data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedpilot.mediator.agent.runner.client import lost
from fedpilot.mediator.agent.runner.process import (
    LOG,
    LOG_BYTES,
    SETTINGS,
    RunnerProcess,
    RunnerSettings,
)

DATA = {"scans": {"path": "/data/scans"}}


@pytest.mark.parametrize(
    ("settings", "quoted"),
    [
        pytest.param({}, True, id="a site without data"),
        pytest.param({"data": DATA}, False, id="a site with data of its own"),
        pytest.param({"policy": Path("/p.yaml")}, False, id="a site with a policy of its own"),
        pytest.param({"data": DATA, "asks_policy": False}, True, id="one's own machine"),
    ],
)
def test_the_log_of_a_site_with_data_stays_there(
    settings: dict[str, Any], quoted: bool, tmp_path: Path
) -> None:
    told = RunnerSettings(run="r", site="paris", blobs=tmp_path, **settings)
    (tmp_path / SETTINGS).write_text(json.dumps(told.to_json()))
    (tmp_path / LOG).write_text("cannot read /data/scans/anna.npz\n")
    error = lost(RunnerProcess(tmp_path), "its runner is gone")
    assert ("anna" in str(error)) is quoted
    assert "its runner is gone" in str(error)


def test_settings_come_back_from_json(tmp_path: Path) -> None:
    told = RunnerSettings(run="r", site="paris", blobs=tmp_path, policy=tmp_path / "policy.yaml")
    assert RunnerSettings.from_json(json.loads(json.dumps(told.to_json()))) == told


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    (tmp_path / SETTINGS).write_text(
        json.dumps(RunnerSettings(run="r", site="paris", blobs=tmp_path).to_json())
    )
    (tmp_path / LOG).write_text("much ado\n" * 100_000 + "\n".join(map(str, range(20))))
    assert RunnerProcess(tmp_path).last_words() == " | ".join(map(str, range(12, 20)))
    (tmp_path / LOG).write_text("x" * 1_000_000)
    assert len(RunnerProcess(tmp_path).last_words()) == LOG_BYTES
