"""Every shipped config trains: a round of each, without Ray."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fedpilot import Federation
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine

CONFIGS = Path(__file__).resolve().parents[3] / "configs"


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_it_trains(config: Path, tmp_path: Path) -> None:
    changes = ["federation.rounds=1", "resources.workers=2", f"outputs.folder={tmp_path}"]
    cluster = FakeCluster([fake_machine("m", CPU=6)])  # two for each of three sites
    with Federation(config, overrides=changes, cluster=cluster) as federation:
        result = federation.run()
    assert result.rounds == 1
    assert math.isfinite(result.rows[-1]["loss"])


def test_tensorboard_files_are_written_when_asked(tmp_path: Path) -> None:
    changes = ["federation.rounds=1", f"outputs.folder={tmp_path}", "outputs.tensorboard=true"]
    cluster = FakeCluster([fake_machine("m", CPU=1)])
    config = CONFIGS / "quickstart.yaml"
    with Federation(config, overrides=changes, cluster=cluster) as federation:
        folder = federation.run().folder
    (events,) = (folder / "tensorboard").iterdir()
    assert b"evaluation/accuracy" in events.read_bytes()
