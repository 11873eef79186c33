"""The runs of a folder are listed, the newest last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import invoke

pytestmark = pytest.mark.usefixtures("own_folder")


def test_no_runs_is_no_error() -> None:
    assert "no runs" in invoke("runs", "list").stdout
    assert json.loads(invoke("runs", "list", "--json").stdout) == {"runs": [], "more": 0}


def test_the_newest_runs_of_a_folder_are_listed() -> None:
    for name in ("a", "b", "c"):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "config.yaml").touch()
    few = invoke("runs", "list", "--last", "2")
    assert [line[0] for line in few.stdout.splitlines()[2:]] == ["b", "c"]
    assert "and 1 older; --all lists them" in few.stderr
    document = json.loads(invoke("runs", "list", "--last", "1", "--json").stdout)
    assert ([run["run_id"] for run in document["runs"]], document["more"]) == (["c"], 2)
    assert len(json.loads(invoke("runs", "list", "--all", "--json").stdout)["runs"]) == 3
