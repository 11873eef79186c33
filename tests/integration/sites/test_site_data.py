"""Data at sites for real: runners with a Ray each, of which each loads its own files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import site_data
from real_ray import Command, fedpilot

pytestmark = [pytest.mark.ray, pytest.mark.soak]

EAST = {"anna": 20, "benedict": 12, "cleopatra": 9}
WEST = {"dorothea": 15, "emilia": 11}
OPEN = {"disclose": {"ids": "exact", "counts": "exact"}}


def run(folder: Path, *files: str) -> Command:
    """A run over the sites of these files, ended."""
    config = site_data.config(files, folder / "runs", resources__ray={"num_cpus": 1})
    (folder / "config.yaml").write_text(json.dumps(config))
    with fedpilot(["run", "config.yaml", "--json"], folder) as ended:
        assert ended.finish() == 0, ended.error()
    return ended


def test_two_sites_train_on_the_union_of_what_they_declare(tmp_path: Path) -> None:
    east = site_data.column(tmp_path / "east", EAST, **OPEN)
    west = site_data.files(tmp_path / "west", WEST, **OPEN)
    whole = site_data.column(tmp_path / "whole", {**EAST, **WEST}, **OPEN)
    files = [
        site_data.site_file(tmp_path / f"{name}.yaml", "scans", section)
        for name, section in (("east", east), ("west", west), ("whole", whole))
    ]
    apart = run(tmp_path, *files[:2])
    assert apart.last("run_started")["clients"] == 5
    assert set(apart.last("gang_reserved")["vnodes"]) == {"site_1", "site_2"}
    together = run(tmp_path, files[2])
    assert together.last("run_finished")["digest"] == apart.last("run_finished")["digest"]
