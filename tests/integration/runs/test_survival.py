"""A run on real Ray through kills and interruptions: the same bits, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.util import placement_group_table

from real_ray import ENVIRONMENT, Command, eventually, fedpilot, ray_head, session_of
from waiting_runs import calm_run, waiting_model

pytestmark = pytest.mark.ray

CONFIG = """
federation:
  number_of_clients: 24
  clients_per_round: 16
  rounds: 4
model: {model}
data:
  dataset_type: digits
  data_distribution_kind: dirichlet
  dirichlet_beta: 0.5
training:
  number_of_epochs: {epochs}
  batch_size: 5
  execution: {execution}
  chunk_size: 4
resources:
  workers: 2
  ray:
    num_cpus: 2
outputs:
  curves: false
"""


@pytest.fixture(
    scope="module", params=["sequential", pytest.param("folded", marks=pytest.mark.soak)]
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the config is and the runs are made; a round takes about a second."""
    made = tmp_path_factory.mktemp("survival")
    waits = request.param == "sequential"
    model, epochs = (waiting_model(made, 0.01), 1) if waits else ("{model_type: mlp}", 40)
    text = CONFIG.format(execution=request.param, model=model, epochs=epochs)
    (made / "config.yaml").write_text(text)
    return made


@pytest.fixture(scope="module")
def digest(folder: Path) -> str:
    """Of the model when nothing happens to the run."""
    return calm_run(folder / "config.yaml", "calm").digest


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A Ray that fedpilot did not start."""
    with ray_head() as found:
        yield found


def on(address: str) -> list[str]:
    """Options that make a run use that Ray."""
    return ["--set", f"resources.ray.address={address}", "--set", "resources.ray.num_cpus=null"]


EMPTY = {"groups": [], "actors": ["virtual_cluster_manager"]}
"""A Ray cluster on which nothing is but its manager, which stays."""


def interrupted_in_round(command: Command, number: int) -> None:
    """Follow a run into the middle of a round."""
    command.wait_for("round_started", round=number)
    command.wait_for("clients_done", round=number)


def worker_pids(command: Command) -> list[int]:
    """Processes of all workers that ever came up."""
    return [event["pid"] for event in command.events if event["event"] == "worker_ready"]


@contextlib.contextmanager
def driver_of(address: str) -> Iterator[None]:
    """This process as a driver of a Ray cluster."""
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("RAY_AUTH_MODE", ENVIRONMENT["RAY_AUTH_MODE"])
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        try:
            yield
        finally:
            ray.shutdown()


def what_is_on_it() -> dict[str, list[str]]:
    """Placement groups and live actors of the Ray cluster of this driver."""
    groups = [each["name"] for each in placement_group_table().values() if live(each)]
    actors = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True)]
    return {"groups": groups, "actors": actors}


def live(group: Mapping[str, Any]) -> bool:
    return bool(group["state"] != "REMOVED")


def untimed(metrics: Path) -> list[dict[str, Any]]:
    """The rows of a run, without what a busy machine changes."""
    timed = ("seconds", "training_seconds", "clients_per_second", "time")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    for row in rows:
        for site in row["sites"].values():
            site.pop("seconds_per_sample", None)
    return [{key: value for key, value in row.items() if key not in timed} for row in rows]


@pytest.mark.soak
def test_a_killed_worker_changes_nothing(folder: Path, digest: str) -> None:
    with fedpilot(["run", "config.yaml", "--json"], folder) as command:
        workers = [command.wait_for("worker_ready")["pid"] for _ in range(2)]
        interrupted_in_round(command, 2)
        os.kill(workers[0], signal.SIGKILL)
        assert command.finish() == 0, command.error()
        assert command.last("worker_lost")["held"]
        assert command.last("run_finished")["digest"] == digest


@pytest.mark.soak
def test_a_worker_killed_in_every_round_changes_nothing(folder: Path, digest: str) -> None:
    with fedpilot(["run", "config.yaml", "--json"], folder) as command:
        for number in (1, 2, 3, 4):
            interrupted_in_round(command, number)
            alive = [pid for pid in worker_pids(command) if psutil.pid_exists(pid)]
            os.kill(alive[0], signal.SIGKILL)
        assert command.finish() == 0, command.error()
        assert command.last("run_finished")["digest"] == digest


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_model_and_leaves_nothing_on_the_cluster(
    folder: Path, digest: str, address: str
) -> None:
    with fedpilot(["run", "config.yaml", "--json", "--run-id", "k", *on(address)], folder) as run:
        interrupted_in_round(run, 3)
        workers = worker_pids(run)
        run.signal(signal.SIGKILL)
        run.process.wait(60)
    eventually(lambda: not any(map(psutil.pid_exists, workers)), 60, "its workers are gone")
    with driver_of(address):
        eventually(lambda: what_is_on_it() == EMPTY, 60, "the cluster is empty")
    listed = json.loads(output_of(["runs", "list", "--json"], folder))["runs"]
    assert {row["status"] for row in listed if row["run_id"] == "k"} == {"interrupted"}
    with fedpilot(["run", "--resume", "k", "--json"], folder) as resumed:
        assert resumed.finish() == 0, resumed.error()
        first = next(e["round"] for e in resumed.events if e["event"] == "round_started")
        assert first == 3
        assert resumed.last("run_finished")["digest"] == digest
    assert untimed(folder / "runs/k/metrics.jsonl") == untimed(folder / "runs/calm/metrics.jsonl")


@pytest.mark.soak
def test_a_killed_run_with_a_ray_of_its_own_takes_it_along_and_resumes(
    folder: Path, digest: str
) -> None:
    with fedpilot(["run", "config.yaml", "--json", "--run-id", "own"], folder) as run:
        interrupted_in_round(run, 2)
        run.signal(signal.SIGKILL)
        run.process.wait(60)
        heavy = ("raylet", "gcs_server", "ray::FederatedNode")
        eventually(
            lambda: not [p for p in session_of(run.pid) if p.name().startswith(heavy)],
            30,
            "its Ray is gone",
        )
    with fedpilot(["run", "--resume", "own", "--json"], folder) as resumed:
        assert resumed.finish() == 0, resumed.error()
        assert resumed.last("run_finished")["digest"] == digest


@pytest.mark.parametrize(
    ("number", "whole_group"),
    [
        pytest.param(signal.SIGINT, True, id="Ctrl-C in a terminal", marks=pytest.mark.soak),
        pytest.param(signal.SIGTERM, False, id="SIGTERM", marks=pytest.mark.soak),
    ],
)
def test_an_interrupted_run_ends_cleanly_says_how_to_resume_and_resumes(
    folder: Path, digest: str, number: signal.Signals, whole_group: bool
) -> None:
    with fedpilot(["run", "config.yaml", "--json"], folder) as run:
        interrupted_in_round(run, 2)
        run.signal(number, whole_group=whole_group)
        assert run.finish(60) == 130, run.error()
        ended = run.last("run_finished")
        assert ended["status"] == "interrupted"
        eventually(lambda: session_of(run.pid) == [], 60, "no process is left")
    with fedpilot(["run", "--resume", ended["run_id"], "--json"], folder) as resumed:
        assert resumed.finish() == 0, resumed.error()
        assert resumed.last("run_finished")["digest"] == digest


@pytest.mark.slow
def test_ctrl_c_leaves_a_cluster_that_is_not_ours_empty(folder: Path, address: str) -> None:
    with fedpilot(["run", "config.yaml", "--json", *on(address)], folder) as run:
        interrupted_in_round(run, 1)
        run.signal(signal.SIGINT, whole_group=True)
        assert run.finish(60) == 130, run.error()
    with driver_of(address):
        assert what_is_on_it() == EMPTY


def test_ctrl_c_during_start_ends_cleanly(folder: Path) -> None:
    with fedpilot(["run", "config.yaml", "--json"], folder) as run:
        run.wait_for("run_started")
        run.signal(signal.SIGINT, whole_group=True)
        assert run.finish(60) == 130, run.error()
        eventually(lambda: session_of(run.pid) == [], 60, "no process is left")


@pytest.mark.soak
def test_a_run_that_runs_is_not_resumed_by_another(folder: Path) -> None:
    with fedpilot(["run", "config.yaml", "--json", "--run-id", "busy"], folder) as run:
        run.wait_for("run_started")
        with fedpilot(["run", "--resume", "busy"], folder) as second:
            assert second.process.wait(60) == 2
            assert "is being run by another process" in second.error()
        run.signal(signal.SIGINT)
        run.finish(60)


def output_of(arguments: list[str], folder: Path) -> str:
    """What a command prints."""
    with fedpilot(arguments, folder) as command:
        out, error = command.process.communicate(timeout=60)
        assert command.process.returncode == 0, error
        return out
