"""A graph on real Ray: every client's model has the same bits, also in a run that was killed."""

from __future__ import annotations

import json
import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from real_ray import Command, fedpilot

pytestmark = [pytest.mark.ray, pytest.mark.slow]

CONFIG = """
federation: {{number_of_clients: 24, rounds: 5, topology: {topology}, aggregation_strategy: dpsgd}}
model: {{model_type: mlp}}
data: {{dataset_type: digits, data_distribution_kind: dirichlet, dirichlet_beta: 0.5}}
training: {{number_of_epochs: 30, batch_size: 5, execution: sequential}}
evaluation: {{every: 5}}
resources: {{workers: {workers}, ray: {{num_cpus: 2}}}}
outputs: {{curves: false, client_digests: true}}
"""


def run_in(
    folder: Path, workers: int, topology: str, *arguments: str
) -> AbstractContextManager[Command]:
    """A run of the config, `r`."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(CONFIG.format(workers=workers, topology=topology))
    return fedpilot(["run", *(arguments or ("config.yaml", "--run-id", "r")), "--json"], folder)


def models_of(folder: Path) -> list[dict[str, Any]]:
    """The digests of all clients' models after every round."""
    return [json.loads(line) for line in (folder / "runs/r/clients.jsonl").open()]


@pytest.mark.parametrize("topology", ["ring", pytest.param("matching", marks=pytest.mark.soak)])
def test_a_killed_run_resumes_to_the_same_models(topology: str, tmp_path: Path) -> None:
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    with run_in(calm, 1, topology) as run:
        assert run.finish() == 0, run.error()
        digest = run.last("run_finished")["digest"]
    with run_in(killed, 2, topology) as run:
        run.wait_for("round_started", round=3)
        run.signal(signal.SIGKILL)
        run.process.wait(60)
    with run_in(killed, 2, topology, "--resume", "r") as run:
        assert run.finish() == 0, run.error()
        assert next(e["round"] for e in run.events if e["event"] == "round_started") <= 3
        assert run.last("run_finished")["digest"] == digest
    assert models_of(killed) == models_of(calm)
