"""A sweep on real Ray ends in order amid a trial, and goes on to the bits of its runs alone."""

from __future__ import annotations

import json
import signal
import tempfile
from pathlib import Path

import pytest

from real_ray import eventually, fedpilot, session_of

pytestmark = [pytest.mark.ray, pytest.mark.slow]

CONFIG = """
federation: {number_of_clients: 12, clients_per_round: 8, rounds: 40}
model: {model_type: logistic_regression}
data: {dataset_type: digits}
resources: {workers: 1, ray: {num_cpus: 1}}
outputs: {curves: false}
sweep: {axes: {training.learning_rate: [0.05, 0.1]}, seeds: [3]}
"""
LAST = "point-002-seed-3"


def digest(folder: Path) -> str:
    return str(json.loads((folder / "manifest.json").read_text())["digest"])


def test_a_sweep_ends_in_order_and_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    with tempfile.TemporaryDirectory(prefix="fp-") as temporary:
        command = ["sweep", "config.yaml", "--name", "s", "--json"]
        with fedpilot(command, tmp_path, TMPDIR=temporary) as sweep:
            sweep.wait_for("trial_finished")
            sweep.wait_for("round_finished")
            sweep.signal(signal.SIGINT, whole_group=True)
            assert sweep.finish(60) == 130
            eventually(lambda: session_of(sweep.pid) == [], 60, "no process is left")
        with fedpilot(["sweep", "--resume", "s", "--json"], tmp_path, TMPDIR=temporary) as rest:
            assert rest.finish(300) == 0
            assert rest.last("sweep_finished")["failed"] == []
            eventually(lambda: session_of(rest.pid) == [], 60, "no process is left")
        assert list(Path(temporary).glob("fedpilot-*")) == []
    alone = ["run", "config.yaml", "--run-id", "alone", "--set", "run.random_seed=3", "--json"]
    with fedpilot([*alone, "--set", "training.learning_rate=0.1"], tmp_path) as run:
        assert run.finish(300) == 0
    assert digest(tmp_path / "runs/s" / LAST) == digest(tmp_path / "runs/alone")
