"""A federation on a Ray that teams share loses workers and grows again, and keeps its bits."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from census import census
from real_ray import ENVIRONMENT, Command, eventually, fedpilot, ray_head

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

CONFIG = """
federation:
  number_of_clients: 24
  clients_per_round: 16
  rounds: 1000
model:
  model_type: mlp
data:
  dataset_type: digits
  data_distribution_kind: dirichlet
  dirichlet_beta: 0.5
training:
  number_of_epochs: 20
  batch_size: 5
  execution: sequential
  chunk_size: 4
resources:
  workers: {{min: 2, max: 4}}
  worker_restarts: 0
  project: vision
  ray:
    address: {address}
"""
QUEUES = """
projects:
  - {name: vision, quota: {default: {CPU: 2}}}
  - {name: speech, quota: {default: {CPU: 2}}}
settings: {grace_s: 60}
"""


class Teams:
    """Two teams share a Ray of four CPUs."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.folder = address, folder
        (folder / "config.yaml").write_text(CONFIG.format(address=address))
        (folder / "queues.yaml").write_text(QUEUES)
        self.types("queue", "apply", "queues.yaml")

    def types(self, *words: str) -> None:
        """Run a command on the shared Ray."""
        done = subprocess.run(
            [sys.executable, "-m", "fedpilot", *words],
            env={**ENVIRONMENT, "RAY_ADDRESS": self.address},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def has_nothing(self) -> bool:
        """Whether Ray has no placement group and no worker any more."""
        return [each for each in census(self.address) if each != "actor ManagerActor"] == []


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Teams]:
    with ray_head(num_cpus=4) as address:
        yield Teams(address, tmp_path_factory.mktemp("teams"))


def loses_two_and_regrows(teams: Teams, command: Command, number: int) -> None:
    """The other team claims its quota in the middle of a round, and gives it back."""
    command.wait_for("clients_done")
    name = f"ours-{number}"
    claim = ("--node", "2xCPU=1", "--project", "speech", "--wait", "150")
    teams.types("cluster", "create", name, *claim)
    for _ in range(2):
        command.wait_for("worker_left")
    teams.types("cluster", "delete", name)
    for _ in range(2):
        command.wait_for("worker_ready")


def keeps_its_bits(teams: Teams, times: int) -> None:
    """Compare with a run of as many rounds on two workers that stay."""
    with fedpilot(["run", "config.yaml", "--json"], teams.folder) as command:
        for _ in range(4):
            command.wait_for("worker_ready")
        for number in range(times):
            loses_two_and_regrows(teams, command, number)
        command.wait_for("round_finished")
        command.signal(signal.SIGINT)
        assert command.finish() == 130, command.error()
        elastic = command.last("run_finished")
    eventually(teams.has_nothing, 60, "no placement group is left, and no worker")
    calm = ["--set", f"federation.rounds={elastic['rounds']}", "--set", "resources.workers=2"]
    with fedpilot(["run", "config.yaml", "--json", *calm], teams.folder) as undisturbed:
        assert undisturbed.finish() == 0, undisturbed.error()
    assert elastic["digest"] == undisturbed.last("run_finished")["digest"]
    names = [event["event"] for event in command.events]
    left = [event for event in command.events if event["event"] == "worker_left"]
    assert len(left) == names.count("worker_notice") == 2 * times
    assert not any(event["held"] for event in left), "nothing was trained twice"
    assert "worker_lost" not in names, "no restart was counted"
    assert "gang_preempted" not in names


def test_a_federation_loses_two_workers_and_regrows_with_the_same_bits(teams: Teams) -> None:
    keeps_its_bits(teams, times=1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_federation_loses_two_workers_and_regrows_ten_times(teams: Teams) -> None:
    keeps_its_bits(teams, times=10)
