"""Jobs of two projects on a real Ray: one leaves its places to the other, and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from fedpilot.fabric import Preempted, VirtualCluster
from fedpilot.fabric.jobs.jobs import Jobs
from rays.jobs import clusters, ended, printed, processes, script, two_machines
from rays.machines import PATIENCE_S
from real_ray import eventually

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400), pytest.mark.own_process]

GRACE_S = 150.0
TEAMS = {
    "projects": [
        {"name": "vision", "quota": {"default": {"CPU": 2}}},
        {"name": "speech", "quota": {"default": {"CPU": 2}}},
    ],
    "settings": {"grace_s": GRACE_S},
}
THREE = VirtualCluster(flex_resource_min={"CPU": 3}, flex_resource_max={"CPU": 3})
TWO = VirtualCluster(flex_resource_min={"CPU": 2}, flex_resource_max={"CPU": 2})

SUMS = """
import json, os, pathlib, signal, sys, time
import ray

saved = pathlib.Path(sys.argv[1])

def save(*_):
    print("it saves", flush=True)
    sys.exit(0)

ray.init(logging_level="ERROR")
signal.signal(signal.SIGTERM, save)

@ray.remote
def square(number):
    return number * number

done = json.loads(saved.read_text()) if saved.exists() else []
attempt = os.environ["FEDPILOT_ATTEMPT"]
print(f"attempt {attempt} begins at {len(done)}", flush=True)
while len(done) < 20:
    if len(done) == 10 and attempt == "1":
        time.sleep(600)
    done += ray.get([square.remote(len(done))])
    saved.write_text(json.dumps(done))
print(json.dumps({"attempt": attempt, "sum": sum(done)}), flush=True)
"""

HOLDS = """
import pathlib, sys, time
import ray
ray.init(logging_level="ERROR")
print("it holds", ray.cluster_resources()["CPU"], flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    with two_machines():
        found = Jobs()
        found.clusters.apply_queues(TEAMS)
        yield found


def test_training_over_quota_leaves_saves_waits_and_ends_with_the_right_result(
    jobs: Jobs, tmp_path: Path
) -> None:
    (tmp_path / "sums").mkdir()
    (tmp_path / "holds").mkdir()
    sums = script(tmp_path / "sums", SUMS)
    saved, over = tmp_path / "saved", tmp_path / "over"
    training = jobs.submit([*sums, str(saved)], THREE, project="vision")
    eventually(lambda: saved.exists() and saved.read_text().count(",") == 9, PATIENCE_S, "half")
    holds = script(tmp_path / "holds", HOLDS)
    claimant = jobs.submit([*holds, str(over)], TWO, project="speech")
    eventually(lambda: "it holds 2.0" in jobs.logs(claimant), GRACE_S - 5, "it has its quota early")
    eventually(lambda: jobs.show(training).status == "WAITING", PATIENCE_S, "the training waits")
    assert not [p for p in processes(str(saved)) if "confine" not in " ".join(p.cmdline())]
    over.touch()
    assert ended(jobs, claimant).status == "SUCCEEDED", jobs.logs(claimant)
    assert ended(jobs, training).status == "SUCCEEDED", jobs.logs(training)
    assert printed(jobs, training) == {"attempt": "2", "sum": sum(n * n for n in range(20))}
    log = jobs.logs(training)
    order = (f"has to leave its places to {claimant} in", "it saves", "exit code 0", "attempt 2")
    assert sorted(order, key=log.index) == list(order), log


def test_a_job_that_should_not_run_again_fails_with_its_reason(jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "holds").mkdir()
    never, over = tmp_path / "never", tmp_path / "over"
    holds = script(tmp_path / "holds", HOLDS)
    id = jobs.submit([*holds, str(never)], THREE, project="vision", on_preempt="fail")
    eventually(lambda: "it holds" in jobs.logs(id), PATIENCE_S, "it runs")
    claimant = jobs.submit([*holds, str(over)], TWO, project="speech")
    found = ended(jobs, id)
    over.touch()
    assert (found.status, found.message.partition(":")[0]) == (
        "FAILED",
        f"preempted by {claimant}",
    )
    assert ended(jobs, claimant).status == "SUCCEEDED"


def test_a_driver_of_its_own_is_told_when_it_submits_and_goes_on_later(
    jobs: Jobs, tmp_path: Path
) -> None:
    @ray.remote
    def one() -> int:
        return 1

    over, holds = tmp_path / "over", script(tmp_path, HOLDS)
    with THREE as mine:  # in the project `default`, which has no quota
        assert ray.get(one.remote(), timeout=PATIENCE_S) == 1
        claimant = jobs.submit([*holds, str(over)], TWO, project="speech")
        eventually(lambda: bool(clusters(jobs)[mine.id]["leaves"]), PATIENCE_S, "it is noticed")
        jobs.clusters.leave(mine.id)
        eventually(lambda: "it holds" in jobs.logs(claimant), PATIENCE_S, "the other runs")
        with pytest.raises(Preempted) as told:
            one.remote()
        assert (told.value.name, told.value.claimant) == (mine.id, claimant)
        over.touch()
        mine.wait(PATIENCE_S)
        assert ray.get(one.remote(), timeout=PATIENCE_S) == 1
    assert ended(jobs, claimant).status == "SUCCEEDED"
