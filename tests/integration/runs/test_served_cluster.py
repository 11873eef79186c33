"""A federation on a Ray cluster that a manager keeps: heads die, workers are upgraded."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from declaring_site import DeclaringSite, until
from fedpilot.common.host.marked_processes import signal_all
from real_ray import fedpilot
from waiting_runs import calm_run, waiting_model

pytestmark = [pytest.mark.ray, pytest.mark.soak]

HEADS = 20
"""How many heads are killed."""
SMALL = "object-store-memory: '80000000'"
DEMO = f"""
metadata: {{name: demo}}
spec:
  headGroupSpec:
    rayStartParams: {{num-cpus: '0', include-dashboard: 'false', {SMALL}}}
  workerGroupSpecs:
    - groupName: workers
      replicas: 3
      minReplicas: 3
      fedpilot: {{drainSeconds: 5}}
      rayStartParams: {{num-cpus: '1', {SMALL}}}
"""
CONFIG = """
federation:
  number_of_clients: 24
  clients_per_round: 12
  rounds: {rounds}
model: {model}
data:
  dataset_type: digits
  data_distribution_kind: dirichlet
  dirichlet_beta: 0.5
training:
  number_of_epochs: 1
  batch_size: 5
  execution: sequential
  chunk_size: 4
resources:
  workers: 3
outputs:
  curves: false
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DeclaringSite]:
    site = DeclaringSite(tmp_path)
    try:
        site.serve()
        site.declare(DEMO)
        site.done("wait", "demo")
        yield site
    finally:
        site.end()


def config(folder: Path, rounds: int, step_s: float) -> Path:
    made = folder / "config.yaml"
    made.write_text(CONFIG.format(rounds=rounds, model=waiting_model(folder, step_s)))
    return made


def on(site: DeclaringSite, folder: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of a run on the cluster."""
    seen = site.seen()
    given = ["--set", f"resources.ray.address={seen['address']}", "--json"]
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": seen["token_file"]}
    return ["run", *arguments, "--folder", str(folder / "runs"), *given], auth


def test_a_run_ends_in_the_same_digest_however_often_its_head_is_killed(
    site: DeclaringSite, tmp_path: Path
) -> None:
    path, chosen = config(tmp_path, 2 * HEADS + 4, 0.005), random.Random(0)
    calm = calm_run(path, "calm").digest
    arguments = [str(path), "--run-id", "killed"]
    for _ in range(HEADS):
        command_line, auth = on(site, tmp_path, *arguments)
        with fedpilot(command_line, tmp_path, **auth) as command:
            command.wait_for("round_finished")
            time.sleep(chosen.uniform(0.0, 1.0))
            head = site.machines()[0]
            signal_all(site.processes_of(site.uid, head), signal.SIGKILL)
            assert command.finish(600) == 1, command.error()
        until(lambda gone=head: gone not in site.machines())  # type: ignore[misc]
        site.done("wait", "demo")
        arguments = ["--resume", "killed"]
    command_line, auth = on(site, tmp_path, *arguments)
    with fedpilot(command_line, tmp_path, **auth) as command:
        assert command.finish(600) == 0, command.error()
        assert command.last("run_finished")["digest"] == calm


def test_workers_are_upgraded_one_by_one_under_a_run(site: DeclaringSite, tmp_path: Path) -> None:
    path = config(tmp_path, 150, 0.02)
    calm = calm_run(path, "calm").digest
    before, ended = {*site.machines()}, Event()
    command_line, auth = on(site, tmp_path, str(path), "--run-id", "upgraded")
    with (
        ThreadPoolExecutor() as pool,
        ended_with(ended),
        fedpilot(command_line, tmp_path, **auth) as command,
    ):
        command.wait_for("round_finished")
        fewest = pool.submit(fewest_workers, site, ended)
        site.declare(DEMO.replace("num-cpus: '1'", "num-cpus: '1', labels: 'upgraded=yes'"))
        code = command.finish(1200)
        after = {*site.machines()}
        ended.set()
        assert fewest.result() == 2
        assert code == 0, command.error()
        assert command.last("run_finished")["digest"] == calm
        assert sum(event["event"] == "worker_lost" for event in command.events) >= 3
    assert (len(after), len(before & after)) == (4, 1)


@contextmanager
def ended_with(ended: Event) -> Iterator[None]:
    """Set an event when the block ends, however it does."""
    try:
        yield
    finally:
        ended.set()


def fewest_workers(site: DeclaringSite, ended: Event) -> int:
    """The least number of workers that are ready at once."""
    found = 3
    while not ended.wait(0.05):
        found = min(found, site.groups().count("workers"))
    return found
