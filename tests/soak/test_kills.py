"""The full counts of kills: at random moments, many times over, the same model in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from real_ray import Command, fedpilot, session_of

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(3600)]

ROUNDS = 240

KINDS = {
    "an MLP": "{model_type: mlp}",
    "a CNN": "{model_type: lenet}",
    "batch statistics": "{model_type: 'normed:Normed'}",
}
NORMED = """
from torch import nn

class Normed(nn.Sequential):
    def __init__(self, num_classes: int) -> None:
        super().__init__(
            nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(32, num_classes),
        )
"""


@pytest.fixture(scope="module", params=list(KINDS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config of some seconds."""
    made = tmp_path_factory.mktemp("soak")
    (made / "normed.py").write_text(NORMED)
    (made / "config.yaml").write_text(
        "federation: {number_of_clients: 30, clients_per_round: 20, rounds: "
        f"{ROUNDS}}}\n"
        f"model: {KINDS[request.param]}\n"
        "data: {dataset_type: digits, options: {image: true}}\n"
        "training: {number_of_epochs: 6, batch_size: 7, optimizer: adam, learning_rate: 0.003}\n"
        "resources: {workers: 2, worker_restarts: 20, ray: {num_cpus: 2}}\n"
    )
    return made


@dataclass(frozen=True)
class Calm:
    """A run that nothing happened to."""

    digest: str
    start_s: float
    """From `run_started` to the first round."""
    rounds_s: float
    """From there to the end."""


@pytest.fixture(scope="module")
def calm(folder: Path) -> Calm:
    with fedpilot(["run", "config.yaml", "--json"], folder) as command:
        assert command.finish(600) == 0, command.error()
        times = {
            event["event"]: datetime.fromisoformat(event["time"])
            for event in reversed(command.events)
        }
        first = times["round_started"]
        return Calm(
            command.last("run_finished")["digest"],
            (first - times["run_started"]).total_seconds(),
            (times["run_finished"] - first).total_seconds(),
        )


def alive_workers(command: Command) -> list[int]:
    """The workers that are up now."""
    pids = [event["pid"] for event in command.events if event["event"] == "worker_ready"]
    return [pid for pid in pids if psutil.pid_exists(pid)]


def test_a_worker_is_killed_in_every_round(folder: Path, calm: Calm) -> None:
    dice = random.Random(1)
    with fedpilot(["run", "config.yaml", "--json"], folder) as command:
        for number in range(1, 13):
            command.wait_for("round_started", round=number)
            time.sleep(dice.random() * calm.rounds_s / ROUNDS)
            if workers := alive_workers(command):
                os.kill(dice.choice(workers), signal.SIGKILL)
        assert command.finish(600) == 0, command.error()
        assert command.last("run_finished")["digest"] == calm.digest


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name
)
def test_the_run_is_ended_over_and_over(folder: Path, calm: Calm, number: signal.Signals) -> None:
    dice = random.Random(int(number))
    name = f"over-{number.name}"
    arguments = ["run", "config.yaml", "--json", "--run-id", name]
    ended = 0
    for _ in range(12):
        with fedpilot(arguments, folder) as command:
            command.wait_for("round_started" if ended == 0 else "run_started")
            started = 0.0 if ended == 0 else calm.start_s
            time.sleep(dice.uniform(0, started + calm.rounds_s / 4))
            if command.process.poll() is None:
                command.signal(number)
                ended += 1
            command.finish(120)
            if number is not signal.SIGKILL:
                assert session_of(command.pid) == []
        arguments = ["run", "--resume", name, "--json"]
        manifest = json.loads((folder / "runs" / name / "manifest.json").read_text())
        if manifest["status"] == "finished":
            break
    with fedpilot(arguments, folder) as command:
        assert command.finish(600) == 0, command.error()
        assert command.last("run_finished")["digest"] == calm.digest
    assert ended > 2
