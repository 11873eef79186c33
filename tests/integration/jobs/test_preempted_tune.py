"""An unmodified script of Ray Tune leaves its places to another project, and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpilot.fabric import VirtualCluster
from fedpilot.fabric.jobs.jobs import Jobs
from rays.jobs import HOLDS, clusters, ended, printed, says, script, three_machines
from real_ray import eventually

pytestmark = [
    pytest.mark.ray,
    pytest.mark.soak,
    pytest.mark.timeout(400),
    pytest.mark.own_process,
]

PATIENCE_S = 120.0
GRACE_S = 5.0
TEAMS = {
    "projects": [
        {"name": "vision", "quota": {"default": {"CPU": 3}}},
        {"name": "speech", "quota": {"default": {"CPU": 3}}},
    ],
    "settings": {"grace_s": GRACE_S},
}
FOUR = VirtualCluster(flex_resource_min={"CPU": 4}, flex_resource_max={"CPU": 4})
THREE = VirtualCluster(flex_resource_min={"CPU": 3}, flex_resource_max={"CPU": 3})
RATES, STEPS, HALF = (1, 2, 3), 10, 5

SWEEP = """
import json, pathlib, sys, tempfile, time
from ray import tune

storage, more = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
steps, half = int(sys.argv[3]), int(sys.argv[4])

def trial(config):
    step, total = 0, 0
    if (saved := tune.get_checkpoint()) is not None:
        with saved.as_directory() as folder:
            step, total = json.loads((pathlib.Path(folder) / "state.json").read_text())
    while step < steps:
        while step == half and not more.exists():  # it takes long
            time.sleep(0.1)
        total += config["rate"] * step
        with (storage / f"steps-{config['rate']}").open("a") as file:
            file.write(f"{step}\\n")
        step += 1
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "state.json").write_text(json.dumps([step, total]))
            checkpoint = tune.Checkpoint.from_directory(folder)
            tune.report({"step": step, "total": total}, checkpoint=checkpoint)

path = storage / "sweep"
if tune.Tuner.can_restore(path):
    print("restored", flush=True)
    tuner = tune.Tuner.restore(str(path), trial, resume_unfinished=True, resume_errored=True)
else:
    tuner = tune.Tuner(
        trial,
        param_space={"rate": tune.grid_search([1, 2, 3])},
        tune_config=tune.TuneConfig(metric="total", mode="max"),
        run_config=tune.RunConfig(name="sweep", storage_path=str(storage), verbose=0),
    )
results = tuner.fit()
totals = sorted((each.config["rate"], each.metrics["total"]) for each in results)
print(json.dumps({"best": results.get_best_result().config["rate"], "totals": totals}), flush=True)
"""


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    with three_machines():
        found = Jobs()
        found.clusters.apply_queues(TEAMS)
        yield found


def test_a_sweep_leaves_comes_back_and_ends_with_the_right_result(
    jobs: Jobs, tmp_path: Path
) -> None:
    storage, more, over = tmp_path / "storage", tmp_path / "more", tmp_path / "over"
    for folder in (storage, tmp_path / "sweep", tmp_path / "holds"):
        folder.mkdir()

    def steps(rate: int) -> list[int]:
        file = storage / f"steps-{rate}"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    command = [*script(tmp_path / "sweep", SWEEP), str(storage), str(more), str(STEPS), str(HALF)]
    sweep = jobs.submit(command, FOUR, project="vision")
    try:
        eventually(lambda: all(len(steps(rate)) == HALF for rate in RATES), PATIENCE_S, "half")
    except AssertionError as error:
        raise AssertionError(jobs.logs(sweep)) from error
    holds = script(tmp_path / "holds", HOLDS)
    claimant = jobs.submit([*holds, str(over)], THREE, project="speech")
    says(jobs, claimant, "it holds 3.0", PATIENCE_S)
    assert clusters(jobs)[sweep]["stopped"]["claimant"] == claimant
    assert jobs.show(sweep).status == "WAITING"
    more.touch()
    over.touch()
    assert ended(jobs, claimant).status == "SUCCEEDED", jobs.logs(claimant)
    assert ended(jobs, sweep).status == "SUCCEEDED", jobs.logs(sweep)
    log = jobs.logs(sweep)
    assert log.index("attempt 2") < log.index("restored"), log
    totals = [[rate, rate * sum(range(STEPS))] for rate in RATES]
    assert printed(jobs, sweep) == {"best": max(RATES), "totals": totals}
    # Tune saves every ten seconds which checkpoints there are, so steps may be repeated.
    assert all(set(steps(rate)) == set(range(STEPS)) for rate in RATES)
