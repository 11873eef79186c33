"""A federation on a Ray that teams share is preempted, and comes back with the same bits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from real_ray import ENVIRONMENT, Command, eventually, fedpilot, ray_head

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

CONFIG = """
federation:
  number_of_clients: 24
  clients_per_round: 16
  rounds: 8
model:
  model_type: mlp
data:
  dataset_type: digits
  data_distribution_kind: dirichlet
  dirichlet_beta: 0.5
training:
  number_of_epochs: 40
  batch_size: 5
  execution: sequential
  chunk_size: 4
resources:
  workers: 2
  project: vision
  ray:
    address: {address}
"""
QUEUES = """
projects:
  - {name: vision, quota: {default: {CPU: 0}}}
  - {name: speech, quota: {default: {CPU: 2}}}
settings: {grace_s: 60}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two teams share a Ray of three CPUs, of which one is enough for no gang of two workers."""
    made = tmp_path_factory.mktemp("teams")
    with ray_head(num_cpus=3) as address:
        (made / "config.yaml").write_text(CONFIG.format(address=address))
        (made / "queues.yaml").write_text(QUEUES)
        (made / "address").write_text(address)
        types(made, "queue", "apply", "queues.yaml")
        yield made


def types(folder: Path, *words: str) -> None:
    """Run a command on the shared Ray."""
    address = (folder / "address").read_text()
    done = subprocess.run(
        [sys.executable, "-m", "fedpilot", *words],
        env={**ENVIRONMENT, "RAY_ADDRESS": address},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> dict[str, Any]:
    """How the run ends when nothing happens."""
    with fedpilot(["run", "config.yaml", "--json", "--run-id", "calm"], folder) as command:
        assert command.finish() == 0, command.error()
        return command.last("run_finished")


def preempted(command: Command, folder: Path) -> None:
    """Another team claims its quota in the middle of a round, and gives it back."""
    command.wait_for("round_finished")
    command.wait_for("clients_done")
    types(folder, "cluster", "create", "ours", "--node", "2xCPU=1", "--project", "speech")
    command.wait_for("gang_preempted")
    types(folder, "cluster", "delete", "ours")
    command.wait_for("gang_regained")


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param("2", id="whose workers stay together"),
        pytest.param("{min: 2, max: 3}", marks=pytest.mark.soak, id="with one that comes alone"),
    ],
)
def test_a_preempted_federation_comes_back_with_the_same_bits(
    workers: str, folder: Path, undisturbed: dict[str, Any]
) -> None:
    with fedpilot(
        ["run", "config.yaml", "--json", "--set", f"resources.workers={workers}"], folder
    ) as command:
        preempted(command, folder)
        assert command.finish() == 0, command.error()
    names = [event["event"] for event in command.events]
    assert names.count("gang_preempted") == names.count("gang_notice") == 1
    assert "worker_lost" not in names
    finished = command.last("run_finished")
    assert finished["digest"] == undisturbed["digest"]


def test_a_run_that_is_stopped_while_it_waits_leaves_nothing(folder: Path) -> None:
    with fedpilot(["run", "config.yaml", "--json"], folder) as command:
        command.wait_for("round_started", round=1)
        types(folder, "cluster", "create", "theirs", "--node", "2xCPU=1", "--project", "speech")
        command.wait_for("gang_preempted")
        command.signal(signal.SIGINT)
        assert command.finish() == 130, command.error()
    address = (folder / "address").read_text()

    def only_theirs() -> bool:
        done = subprocess.run(
            [sys.executable, "-m", "fedpilot", "queue", "list", "--json"],
            env={**ENVIRONMENT, "RAY_ADDRESS": address},
            capture_output=True,
            text=True,
            timeout=180,
        )
        return [each["id"] for each in json.loads(done.stdout)["workloads"]] == ["theirs"]

    eventually(only_theirs, 60, "the waiting gang has ended with its run")
    types(folder, "cluster", "delete", "theirs")
