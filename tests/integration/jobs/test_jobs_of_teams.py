"""Jobs of teams that share a real Ray: quotas, notice and grace, growth, and the page about quotas.

A claimant of which only the claim matters is a virtual cluster that this process asks for.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from click.testing import CliRunner

from fedpilot.cli import main
from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, Preempted, VirtualCluster
from fedpilot.fabric.jobs.jobs import Jobs
from rays.jobs import (
    HOLDS,
    LOOK_S,
    clusters,
    ended,
    printed,
    processes,
    says,
    script,
    two_machines,
)
from rays.machines import PATIENCE_S
from real_ray import ENVIRONMENT, REPOSITORY, eventually

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.own_process,
]

GRACE_S = 150.0
PAGE = (REPOSITORY / "docs/how-to/share-a-ray-cluster-among-teams.md").read_text()
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

CPU = FixedSizeNode(resources={"CPU": 1})

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
def squares(begin, end):
    return [number * number for number in range(begin, end)]

done = json.loads(saved.read_text()) if saved.exists() else []
attempt = os.environ["FEDPILOT_ATTEMPT"]
print(f"attempt {attempt} begins at {len(done)}", flush=True)
while len(done) < 20:
    if len(done) == 10 and attempt == "1":
        time.sleep(600)
    done += ray.get(squares.remote(len(done), len(done) + 10))
    saved.write_text(json.dumps(done))
print(json.dumps({"attempt": attempt, "sum": sum(done)}), flush=True)
"""
SEARCH = """
import json, pathlib, sys, time
import ray
ray.init(logging_level="ERROR")
told, end = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])

@ray.remote(num_cpus=1)
def trial(n):
    while not end.exists():
        time.sleep(0.05)
    return n

todo = {trial.remote(n): n for n in range(4)}
found, lost = [], []
while todo:
    done, _ = ray.wait(list(todo), timeout=0.2)
    for each in done:
        n = todo.pop(each)
        try:
            found.append(ray.get(each))
        except ray.exceptions.RayError as error:
            lost.append(type(error).__name__)
            todo[trial.remote(n)] = n
    told.write_text(json.dumps({"found": sorted(found), "lost": lost}))
"""


@pytest.fixture(scope="module")
def found() -> Iterator[Jobs]:
    """The jobs of a Ray of two machines with two CPUs each."""
    with two_machines():
        yield Jobs()


@pytest.fixture
def jobs(found: Jobs) -> Jobs:
    """The same, shared by two teams."""
    found.clusters.apply_queues(TEAMS)
    return found


@contextlib.contextmanager
def claimed(jobs: Jobs, spec: VirtualCluster) -> Iterator[None]:
    """Another team asks for places, and gives up what it has at the end."""
    jobs.clusters.create("claims", spec, project="speech", wait_s=0.0)
    try:
        yield
    finally:
        jobs.clusters.delete("claims")


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
    says(jobs, claimant, "it holds 2.0", GRACE_S - 5)  # early
    eventually(
        lambda: jobs.show(training).status == "WAITING", PATIENCE_S, "it waits", every_s=LOOK_S
    )
    assert not [p for p in processes(str(saved)) if "confine" not in " ".join(p.cmdline())]
    over.touch()
    assert ended(jobs, claimant).status == "SUCCEEDED", jobs.logs(claimant)
    assert ended(jobs, training).status == "SUCCEEDED", jobs.logs(training)
    assert printed(jobs, training) == {"attempt": "2", "sum": sum(n * n for n in range(20))}
    log = jobs.logs(training)
    order = (f"has to leave its places to {claimant} in", "it saves", "exit code 0", "attempt 2")
    assert sorted(order, key=log.index) == list(order), log


@pytest.mark.soak
def test_a_job_that_should_not_run_again_fails_with_its_reason(jobs: Jobs) -> None:
    holds = ["sh", "-c", "echo it holds; exec sleep 600"]
    id = jobs.submit(holds, THREE, project="vision", on_preempt="fail")
    says(jobs, id, "\nit holds\n")
    with claimed(jobs, TWO):
        found = ended(jobs, id)
        jobs.clusters.wait("claims", PATIENCE_S)
    assert (found.status, found.message.partition(":")[0]) == ("FAILED", "preempted by claims")


@pytest.mark.soak
def test_a_driver_of_its_own_is_told_when_it_submits_and_goes_on_later(jobs: Jobs) -> None:
    @ray.remote
    def one() -> int:
        return 1

    with THREE as mine:  # in the project `default`, which has no quota
        assert ray.get(one.remote(), timeout=PATIENCE_S) == 1
        with claimed(jobs, TWO):
            eventually(lambda: bool(clusters(jobs)[mine.id]["leaves"]), PATIENCE_S, "it is noticed")
            jobs.clusters.leave(mine.id)
            jobs.clusters.wait("claims", PATIENCE_S)
            with pytest.raises(Preempted) as told:
                one.remote()
        assert (told.value.name, told.value.claimant) == (mine.id, "claims")
        mine.wait(PATIENCE_S)
        assert ray.get(one.remote(), timeout=PATIENCE_S) == 1


@pytest.mark.soak
def test_a_job_that_moves_runs_again_at_once_on_the_other_machine(
    jobs: Jobs, tmp_path: Path
) -> None:
    jobs.clusters.apply_queues({**TEAMS, "settings": {"grace_s": GRACE_S, "consolidation": True}})
    over, holds = tmp_path / "over", script(tmp_path, HOLDS)
    jobs.clusters.create("stays", ONE_NODE, project="vision", preemptible=False)
    jobs.clusters.create("block", ONE_NODE, project="speech")
    id = jobs.submit([*holds, str(over)], ONE_NODE, project="vision")
    says(jobs, id, "it holds 1.0")
    jobs.clusters.delete("block")
    with claimed(jobs, WHOLE):
        jobs.clusters.wait("claims", GRACE_S - 5)  # early
        eventually(
            lambda: jobs.logs(id).count("it holds 1.0") == 2, PATIENCE_S, "again", every_s=LOOK_S
        )
        held = clusters(jobs)
        (machine,) = {node["machine"] for name in ("stays", id) for node in held[name]["nodes"]}
        assert machine not in {node["machine"] for node in held["claims"]["nodes"]}
        over.touch()
        assert ended(jobs, id).status == "SUCCEEDED", jobs.logs(id)
    jobs.clusters.delete("stays")


@pytest.mark.soak
def test_work_on_what_was_borrowed_ends_for_a_claimant_and_the_rest_goes_on(
    jobs: Jobs, tmp_path: Path
) -> None:
    jobs.clusters.apply_queues({**TEAMS, "settings": {"grace_s": 2.0}})

    @ray.remote(num_cpus=1, max_retries=0)
    def waits(end: str) -> int:
        while not Path(end).exists():
            time.sleep(0.05)
        return 1

    end = tmp_path / "end"
    with VirtualCluster() as mine:
        tasks = [waits.remote(str(end)) for _ in range(4)]
        borrowed = {"CPU": 4.0}
        eventually(lambda: clusters(jobs)[mine.id]["borrowed"] == borrowed, PATIENCE_S, "all run")
        with claimed(jobs, TWO):
            jobs.clusters.wait("claims", PATIENCE_S)
            assert clusters(jobs)[mine.id]["state"] == "active"
            end.touch()
            found = [_result(task) for task in tasks]
        assert found.count(1) == 2, found


def _result(task: ray.ObjectRef[int]) -> int | str:
    try:
        return int(ray.get(task, timeout=PATIENCE_S))
    except ray.exceptions.RayError as error:
        return type(error).__name__


def test_a_job_grows_gives_nodes_back_and_goes_on(jobs: Jobs, tmp_path: Path) -> None:
    quota = {"projects": [{"name": "default", "quota": {"default": {"CPU": 4}}}]}
    jobs.clusters.apply_queues({**quota, "settings": {"grace_s": 2}})
    told, end = tmp_path / "told.json", tmp_path / "end"
    elastic = VirtualCluster(fixed_size_nodes=(FixedSizeNodes(nodes=(CPU,), max_nodes=4),))
    command = [*script(tmp_path, SEARCH), str(told), str(end)]
    jobs.submit(command, elastic, id="search")

    def works_on() -> tuple[int, int]:
        """How many nodes it has, and how many tasks run."""
        found = clusters(jobs).get("search")
        return (0, 0) if found is None else (len(found["nodes"]), found["work"]["placed"])

    eventually(lambda: works_on() == (4, 4), PATIENCE_S, "four nodes work")
    two = VirtualCluster(fixed_size_nodes=(FixedSizeNodes(nodes=(CPU, CPU)),))
    asked = time.monotonic()
    assert jobs.clusters.create("mine", two, wait_s=PATIENCE_S)["state"] == "active"
    assert time.monotonic() - asked > 2
    jobs.clusters.delete("mine")
    end.touch()
    assert ended(jobs, "search").status == "SUCCEEDED"
    said = json.loads(told.read_text())
    assert said["found"] == [0, 1, 2, 3], said


# -- the page ---------------------------------------------------------------------------------


class Terminal:
    """Where a reader types the commands of the page: here a process joins Ray once for all."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def __call__(self, *words: str) -> str:
        client = self._jobs if words[0] == "job" else self._jobs.clusters
        done = CliRunner().invoke(
            main, words, prog_name="fedpilot", obj=lambda *_: contextlib.nullcontext(client)
        )
        assert done.exit_code == 0, f"{words}\n{done.output}"
        return done.stdout

    def process(self, *words: str) -> str:
        """The same in a process of its own."""
        done = subprocess.run(
            [sys.executable, "-m", "fedpilot", *words],
            env={**ENVIRONMENT, "RAY_ADDRESS": ray.get_runtime_context().gcs_address},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
        return done.stdout

    def states(self) -> dict[str, str]:
        """The states of the jobs' virtual clusters, by name."""
        return {each["id"]: each["state"] for each in self._jobs.clusters.queues()["workloads"]}

    def waits_for(self, id: str) -> None:
        """Wait until a job has its places."""
        eventually(lambda: self.states().get(id) == "active", PATIENCE_S, f"{id} has its places")


def section(title: str) -> str:
    """The text below a heading of the page."""
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def lines(title: str) -> list[list[str]]:
    """The fedpilot commands below a heading."""
    shell = "".join(re.findall(r"```sh\n(.*?)```", section(title), re.DOTALL))
    return [shlex.split(line)[1:] for line in shell.splitlines() if line.startswith("fedpilot ")]


def test_the_page_two_teams_share_and_one_claims_its_quota_back(
    found: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "118")
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    fedpilot = Terminal(found)
    dry_run, apply = lines("Set two quotas")
    assert "this was a dry run" in fedpilot(*dry_run)
    assert re.search(r"revision \d+ is applied", fedpilot.process(*apply))

    *submitted, listed = lines("Submit")
    jobs = {f"train-{n}": "active" for n in (1, 2, 3, 4)}
    for id, line in zip(jobs, submitted, strict=True):  # the later one asks later, as for a reader
        fedpilot(*line)
        fedpilot.waits_for(id)
    assert fedpilot.states() == jobs
    assert "██████████│█████████╎    4      2      4        –     4      0" in fedpilot(*listed)

    claim, asr, train, *shown = lines("Claim a quota back")
    fedpilot.process(*claim)
    fedpilot.waits_for("asr")
    winner, loser = fedpilot(*asr), fedpilot(*train)
    assert "2 workloads left for it: train-3 and train-4" in winner
    assert "train-4 waits in project vision, pool default, 2nd in line" in loser
    assert "a quota of 2 CPU and a fair share of 2 CPU now" in " ".join(loser.split())
    assert fedpilot.states() == {
        **jobs,
        **{f"train-{n}": "waiting" for n in (3, 4)},
        "asr": "active",
    }
    for line in shown:
        fedpilot(*line)
    assert (tmp_path / "queues.png").read_bytes().startswith(b"\x89PNG")

    now, simulate, other = lines("Try another quota")
    fedpilot(*now)
    case = json.loads((tmp_path / "now.json").read_text())
    same = json.loads(fedpilot(*simulate, "--json"))["cases"][0]
    assert same["decisions"] == [], "simulate decides what the manager has decided"
    for project in case["projects"]:
        project["quota"]["default"]["CPU"] = {"vision": 3, "speech": 1}.get(project["name"], 0)
    (tmp_path / "other.json").write_text(json.dumps(case))
    changed = json.loads(fedpilot(*other, "--json"))["cases"][0]
    assert changed["running"]["asr"] == 0

    fedpilot("job", "stop", "asr")
    eventually(
        lambda: fedpilot.states() == jobs, PATIENCE_S, "the jobs of vision run again by themselves"
    )
    for id in jobs:
        found.stop(id)
    eventually(lambda: fedpilot.states() == {}, PATIENCE_S, "all jobs have ended")
