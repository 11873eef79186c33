"""Jobs of two projects on a real Ray: one leaves its places to the other, and comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from fedpilot.fabric import FixedSizeNode, Preempted, VirtualCluster
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

ONE_NODE, WHOLE = (
    VirtualCluster(fixed_size_nodes=(FixedSizeNode(resources={"CPU": cpus}),)) for cpus in (1, 2)
)

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


def test_a_job_that_moves_runs_again_at_once_on_the_other_machine(
    jobs: Jobs, tmp_path: Path
) -> None:
    jobs.clusters.apply_queues({**TEAMS, "settings": {"grace_s": GRACE_S, "consolidation": True}})
    (tmp_path / "holds").mkdir()
    over, holds = tmp_path / "over", script(tmp_path / "holds", HOLDS)
    first = jobs.submit([*holds, str(over)], ONE_NODE, project="vision")
    eventually(lambda: "it holds" in jobs.logs(first), PATIENCE_S, "the first runs")
    jobs.clusters.create("block", ONE_NODE, project="speech")
    second = jobs.submit([*holds, str(over)], ONE_NODE, project="vision")
    eventually(lambda: "it holds" in jobs.logs(second), PATIENCE_S, "the second runs")
    jobs.clusters.delete("block")
    claimant = jobs.submit([*holds, str(over)], WHOLE, project="speech")
    eventually(lambda: "it holds 2.0" in jobs.logs(claimant), GRACE_S - 5, "it has a machine early")

    def attempts() -> list[int]:
        return sorted(jobs.logs(id).count("it holds 1.0") for id in (first, second))

    eventually(lambda: attempts() == [1, 2], PATIENCE_S, "one of them runs again")
    held = clusters(jobs)
    (machine,) = {node["machine"] for id in (first, second) for node in held[id]["nodes"]}
    assert machine not in {node["machine"] for node in held[claimant]["nodes"]}
    over.touch()
    for id in (first, second, claimant):
        assert ended(jobs, id).status == "SUCCEEDED", jobs.logs(id)


def test_work_on_what_was_borrowed_ends_for_a_claimant_and_the_rest_goes_on(
    jobs: Jobs, tmp_path: Path
) -> None:
    jobs.clusters.apply_queues({**TEAMS, "settings": {"grace_s": 2.0}})

    @ray.remote(num_cpus=1, max_retries=0)
    def waits(end: str) -> int:
        while not Path(end).exists():
            time.sleep(0.05)
        return 1

    over, end, holds = tmp_path / "over", tmp_path / "end", script(tmp_path, HOLDS)
    with VirtualCluster() as mine:
        tasks = [waits.remote(str(end)) for _ in range(4)]
        borrowed = {"CPU": 4.0}
        eventually(lambda: clusters(jobs)[mine.id]["borrowed"] == borrowed, PATIENCE_S, "all run")
        claimant = jobs.submit([*holds, str(over)], TWO, project="speech")
        eventually(lambda: "it holds 2.0" in jobs.logs(claimant), PATIENCE_S, "it has its quota")
        assert clusters(jobs)[mine.id]["state"] == "active"
        end.touch()
        found = [_result(task) for task in tasks]
        assert found.count(1) == 2, found
        over.touch()
    assert ended(jobs, claimant).status == "SUCCEEDED"


def _result(task: ray.ObjectRef[int]) -> int | str:
    try:
        return int(ray.get(task, timeout=PATIENCE_S))
    except ray.exceptions.RayError as error:
        return type(error).__name__
