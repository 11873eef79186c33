"""The full counts of kills: at random moments, many times over, the same model in the end."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from real_ray import Command, fedpilot, session_of

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(3600)]

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
    """A folder with a config of twelve rounds of a second or so."""
    made = tmp_path_factory.mktemp("soak")
    (made / "normed.py").write_text(NORMED)
    (made / "config.yaml").write_text(
        "federation: {number_of_clients: 30, clients_per_round: 20, rounds: 12}\n"
        f"model: {KINDS[request.param]}\n"
        "data: {dataset_type: digits, options: {image: true}}\n"
        "training: {number_of_epochs: 6, batch_size: 7, optimizer: adam, learning_rate: 0.003}\n"
        "resources: {workers: 2, worker_restarts: 20, ray: {num_cpus: 2}}\n"
    )
    return made


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> str:
    """The digest of a run that nothing happened to."""
    with fedpilot(["run", "config.yaml", "--json"], folder) as command:
        assert command.finish(600) == 0, command.error()
        digest: str = command.last("run_finished")["digest"]
        return digest


def alive_workers(command: Command) -> list[int]:
    """The workers that are up now."""
    pids = [event["pid"] for event in command.events if event["event"] == "worker_ready"]
    return [pid for pid in pids if psutil.pid_exists(pid)]


def test_a_worker_is_killed_in_every_round(folder: Path, undisturbed: str) -> None:
    dice = random.Random(1)
    with fedpilot(["run", "config.yaml", "--json"], folder) as command:
        for number in range(1, 13):
            command.wait_for("round_started", round=number)
            time.sleep(dice.random() * 0.5)
            if workers := alive_workers(command):
                os.kill(dice.choice(workers), signal.SIGKILL)
        assert command.finish(600) == 0, command.error()
        assert command.last("run_finished")["digest"] == undisturbed


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_run_is_ended_over_and_over(
    folder: Path, undisturbed: str, number: signal.Signals
) -> None:
    dice = random.Random(int(number))
    arguments: list[str] = ["run", "config.yaml", "--json", "--run-id", f"over-{number.name}"]
    ended: dict[str, Any] = {}
    for _ in range(8):
        with fedpilot(arguments, folder) as command:
            command.wait_for("run_started")
            begun = (folder / "runs" / f"over-{number.name}" / "metrics.jsonl").exists()
            time.sleep(dice.uniform(0 if begun else 8, 12))
            if command.process.poll() is None:
                command.signal(number)
            command.finish(120)
            if number is not signal.SIGKILL:
                assert session_of(command.pid) == []
        arguments = ["run", "--resume", f"over-{number.name}", "--json"]
    with fedpilot(arguments, folder) as command:
        assert command.finish(600) == 0, command.error()
        ended = command.last("run_finished")
    assert ended["digest"] == undisturbed
