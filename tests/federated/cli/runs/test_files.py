"""Runs are removed with their folders, unless they run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from command_line import invoke
from fedpilot.federated.federation.run_folder.folder import RunFolder

pytestmark = pytest.mark.usefixtures("own_folder")


def test_runs_of_a_folder_are_removed_unless_they_run() -> None:
    for name in ("a", "b"):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "config.yaml").touch()
    with RunFolder.locked(Path("runs/b")):
        refused = invoke("runs", "remove", "a", "b", "--json")
        assert refused.exit_code != 0
        assert json.loads(refused.stdout) == {"removed": ["a"]}
    assert os.listdir("runs") == ["b"]
    missing = invoke("runs", "remove", "a")
    assert missing.exit_code == 2
    assert "no run a in runs/" in missing.stderr
    assert "removed b" in invoke("runs", "remove", "b").stdout
    assert os.listdir("runs") == []
