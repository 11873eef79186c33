"""A federation on a Ray that teams share loses its workers, gets them again, and keeps its bits."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from census import census
from fedpilot.fabric import FixedSizeNode, VirtualCluster, VirtualClusters
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation
from rays.machines import PATIENCE_S, machines
from real_ray import Command, eventually, fedpilot

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

WAITING = """
import time

from torch import nn


class Waiting(nn.Module):
    def __init__(self, input_shape, num_classes, batch_s: float = 0.0):
        super().__init__()
        self.linear, self.batch_s = nn.Linear(*input_shape, num_classes), batch_s

    def forward(self, x):
        if self.training:
            time.sleep(self.batch_s)
        return self.linear(x)
"""
"""A model whose rounds last seconds on any machine, and take no processor."""

CONFIG: dict[str, dict[str, Any]] = {
    "federation": {"number_of_clients": 24, "clients_per_round": 16, "rounds": 4},
    "model": {"model_type": "waiting:Waiting", "options": {"batch_s": 0.05}},
    "data": {
        "dataset_type": "synthetic",
        "options": {"samples": 1000, "features": 6, "classes": 3},
        "data_distribution_kind": "dirichlet",
        "dirichlet_beta": 0.5,
    },
    "training": {"batch_size": 5, "execution": "sequential", "chunk_size": 4},
    "outputs": {"curves": False},
}
ELASTIC = "{min: 2, max: 4}"


class Teams:
    """Two teams share a Ray of four CPUs: one trains, and this process claims for the other."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.folder = address, folder
        self._clusters = VirtualClusters()
        resources = {"project": "vision", "worker_restarts": 0, "ray": {"address": address}}
        (folder / "config.yaml").write_text(json.dumps({**CONFIG, "resources": resources}))
        (folder / "waiting.py").write_text(WAITING)

    def run(self, workers: str, *options: str) -> Any:
        """The run of the team that trains."""
        settings = ["--set", f"resources.workers={workers}", *options]
        return fedpilot(["run", "config.yaml", "--json", *settings], self.folder)

    def have(self, vision: int, speech: int) -> None:
        """Give the teams these quotas of CPUs."""
        quotas = {"vision": vision, "speech": speech}
        projects = [
            {"name": name, "quota": {"default": {"CPU": cpus}}} for name, cpus in quotas.items()
        ]
        self._clusters.apply_queues({"projects": projects, "settings": {"grace_s": 60}})

    def claim(self, name: str, cpus: int) -> None:
        """Claim quota of the team that does not train."""
        node = FixedSizeNode(resources={"CPU": 1})
        spec = VirtualCluster(fixed_size_nodes=(node,) * cpus)
        self._clusters.create(name, spec, project="speech", wait_s=0.0)

    def give_back(self, name: str) -> None:
        """End a claim that has its places."""
        self._clusters.wait(name, PATIENCE_S)
        self._clusters.delete(name)

    def workloads(self) -> list[str]:
        """What has places or waits for some."""
        return [each["id"] for each in self._clusters.queues()["workloads"]]

    def have_nothing(self) -> bool:
        """Whether Ray has no placement group and no worker any more."""
        return [each for each in census(self.address) if each != "actor ManagerActor"] == []

    def undisturbed(self, rounds: int) -> str:
        """The digest of the model after so many rounds to which nothing happens, without Ray."""
        config = {
            **CONFIG,
            "federation": {**CONFIG["federation"], "rounds": rounds},
            "model": {**CONFIG["model"], "options": {}},
            "outputs": {"curves": False, "folder": str(self.folder / "calm")},
            "resources": {"workers": 1},
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(self.folder))
            with Federation(config, cluster=FakeCluster([fake_machine("a", CPU=1)])) as federation:
                return federation.run().digest


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Teams]:
    with machines(1, 4) as at:
        yield Teams(at.address, tmp_path_factory.mktemp("teams"))


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param("2", marks=pytest.mark.soak, id="whose workers stay together"),
        pytest.param("{min: 2, max: 3}", marks=pytest.mark.soak, id="with one that comes alone"),
    ],
)
def test_a_preempted_federation_comes_back_with_the_same_bits(workers: str, teams: Teams) -> None:
    teams.have(vision=0, speech=3)  # one CPU is then left: enough for no gang of two workers
    with teams.run(workers) as command:
        command.wait_for("round_finished")
        command.wait_for("clients_done")
        teams.claim("ours", 3)
        command.wait_for("gang_preempted")
        teams.give_back("ours")
        command.wait_for("gang_regained")
        assert command.finish() == 0, command.error()
    names = [event["event"] for event in command.events]
    assert names.count("gang_preempted") == names.count("gang_notice") == 1
    assert "worker_lost" not in names
    assert command.last("run_finished")["digest"] == teams.undisturbed(rounds=4)


@pytest.mark.parametrize(
    "times",
    [
        pytest.param(1, id="once"),
        pytest.param(10, marks=[pytest.mark.soak, pytest.mark.timeout(1800)], id="ten times"),
    ],
)
def test_a_federation_loses_two_workers_regrows_and_is_stopped_while_it_waits(
    times: int, teams: Teams
) -> None:
    """It has the bits of as many rounds on one worker that stays, and leaves nothing."""
    teams.have(vision=2, speech=2)
    with teams.run(ELASTIC, "--set", "federation.rounds=1000") as command:
        for _ in range(4):
            command.wait_for("worker_ready")
        for number in range(times):
            loses_two_and_regrows(teams, command, f"ours-{number}")
        command.wait_for("round_finished")
        so_far = list(command.events)
        teams.have(vision=0, speech=3)
        teams.claim("theirs", 3)
        command.wait_for("gang_preempted")
        command.signal(signal.SIGINT)
        assert command.finish() == 130, command.error()
    eventually(lambda: teams.workloads() == ["theirs"], 60, "the waiting gang ended with its run")
    teams.give_back("theirs")
    eventually(teams.have_nothing, 60, "no placement group is left, and no worker")
    names = [event["event"] for event in so_far]
    left = [event for event in so_far if event["event"] == "worker_left"]
    assert len(left) == names.count("worker_notice") == 2 * times
    assert not any(event["held"] for event in left), "nothing was trained twice"
    assert "worker_lost" not in names, "no restart was counted"
    assert "gang_preempted" not in names
    finished = command.last("run_finished")
    assert finished["digest"] == teams.undisturbed(finished["rounds"])


def loses_two_and_regrows(teams: Teams, command: Command, claim: str) -> None:
    """The other team claims its quota in the middle of a round, and gives it back."""
    command.wait_for("clients_done")
    teams.claim(claim, 2)
    for _ in range(2):
        command.wait_for("worker_left")
    teams.give_back(claim)
    for _ in range(2):
        command.wait_for("worker_ready")
