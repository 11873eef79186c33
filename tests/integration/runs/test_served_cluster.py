"""A federation on a Ray cluster that a manager keeps: heads die, workers are upgraded."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

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
      fedpilot: {{drainSeconds: 60}}
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


def config(folder: Path, rounds: int) -> Path:
    made = folder / "config.yaml"
    made.write_text(CONFIG.format(rounds=rounds, model=waiting_model(folder, 0.005)))
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
    path, chosen = config(tmp_path, 2 * HEADS + 4), random.Random(0)
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
    path = config(tmp_path, 120)
    calm = calm_run(path, "calm").digest
    before = {*site.machines()}
    least, ended = [3], Event()
    watching = Thread(target=watch, args=(site, least, ended))
    command_line, auth = on(site, tmp_path, str(path), "--run-id", "upgraded")
    with fedpilot(command_line, tmp_path, **auth) as command:
        command.wait_for("round_finished")
        watching.start()
        site.declare(DEMO.replace("num-cpus: '1'", "num-cpus: '1', labels: 'upgraded=yes'"))
        code = command.finish(600)
        ended.set()
        watching.join()
        assert code == 0, command.error()
        assert command.last("run_finished")["digest"] == calm
    until(lambda: len(site.machines()) == 4 and len(before & {*site.machines()}) == 1)
    assert least[0] >= 2


def watch(site: DeclaringSite, least: list[int], ended: Event) -> None:
    """Keep the least number of workers that are ready at once."""
    while not ended.wait(0.05):
        least[0] = min(least[0], site.groups().count("workers"))
