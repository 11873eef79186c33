"""`fedpilot job submit`: errors come first, the log is alone on stdout, codes tell."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from fake_jobs import FakeJobs, invoke
from fedpilot.fabric import ClusterUnreachable, FabricError, VirtualCluster
from fedpilot.fabric.cli import jobs as job_cli
from fedpilot.fabric.errors import NeverFits, NoSuchCluster, SpecError
from fedpilot.fabric.jobs.job_log import OVER, READY, TOLD


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, nobody says that a job waits."""
    monkeypatch.setattr(job_cli, "QUIET_S", 3600.0)


BEFORE = [
    "2026-01-01 00:00:00,000\tINFO job_manager.py:581 -- Runtime env is setting up.\nRunning ent",
    "rypoint for job speech: python -m fedpilot.fabric.confine\nfedpilot: virtual cluster spee",
    "ch is waiting (position 1): it needs 4 CPU, and there is room for 2 CPU only\n",
]

BEGINS = f"fedpilot: virtual cluster speech is active; {READY}\n"


def test_the_log_of_the_command_goes_to_stdout_and_why_it_waits_to_stderr() -> None:
    log = [*BEFORE, BEGINS + "epoch 1\nfedpilot: my own", " words\nno newline"]
    done = invoke(FakeJobs(log=log), "submit", "--id", "speech", "--min", "CPU=4", "--", "x")
    assert (done.exit_code, done.stdout) == (0, "epoch 1\nfedpilot: my own words\nno newline")
    assert done.stderr == (
        "fedpilot: job speech is submitted\n"
        "fedpilot: virtual cluster speech is waiting (position 1): it needs 4 CPU, and there is "
        "room for 2 CPU only\n"
    )


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_it_does_not_matter_how_ray_cuts_the_log(size: int) -> None:
    text = "".join(BEFORE) + BEGINS + "one\n\ntwo\nthree"
    log = [text[i : i + size] for i in range(0, len(text), size)]
    done = invoke(FakeJobs(log=log), "submit", "--id", "speech", "--", "x")
    assert (done.exit_code, done.stdout) == (0, "one\n\ntwo\nthree")
    assert done.stderr.count("is waiting (position 1)") == 1


def test_what_was_asked_for_is_what_is_submitted(tmp_path: Path) -> None:
    jobs = FakeJobs(log=[BEGINS])
    words = ["--node", "2xCPU=1", "--policy", "STRICT_SPREAD", "--id", "vision", "--priority", "3"]
    words += ["--project", "lab", "--pool", "gpus", "--priority-class", "build", "--preemptible"]
    more = ["--deadline", "60", "--working-dir", str(tmp_path), "--runtime-env", '{"pip": ["x"]}']
    done = invoke(jobs, "submit", *words, *more, "--", "python", "a.py", "--min", "0", "-x")
    assert done.exit_code == 0, done.stderr
    node = {"resources": {"CPU": 1.0}}
    assert jobs.submitted == [
        {
            "command": ["python", "a.py", "--min", "0", "-x"],
            "spec": {
                "fixed_size_nodes": [{"nodes": [node, node], "scheduling_policy": "STRICT_SPREAD"}]
            },
            "join": None,
            "id": "vision",
            "priority": 3,
            "project": "lab",
            "pool": "gpus",
            "priority_class": "build",
            "preemptible": True,
            "deadline_s": 60.0,
            "runtime_env": {"pip": ["x"], "working_dir": str(tmp_path)},
            "on_preempt": "requeue",
        }
    ]


def test_a_spec_may_be_json_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text("flex_resource_min: {CPU: 2}\n")
    jobs = FakeJobs(log=[BEGINS])
    text = '{"flex_resource_min": {"CPU": 2}}'
    assert invoke(jobs, "submit", "--virtual-cluster", text, "--", "x").exit_code == 0
    assert invoke(jobs, "submit", "--spec", str(file), "--", "x").exit_code == 0
    assert [each["spec"] for each in jobs.submitted] == [{"flex_resource_min": {"CPU": 2.0}}] * 2


def test_a_job_may_join_a_virtual_cluster_that_is_there() -> None:
    jobs = FakeJobs(log=[BEGINS])
    assert invoke(jobs, "submit", "--in", "team", "--", "x").exit_code == 0
    assert (jobs.submitted[0]["join"], jobs.submitted[0]["spec"]) == ("team", None)


def test_without_waiting_its_id_is_all_that_is_printed() -> None:
    jobs = FakeJobs()
    done = invoke(jobs, "submit", "--no-wait", "--", "x")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == jobs.submitted[0]["id"] + "\n"
    bare = json.loads(invoke(jobs, "submit", "--no-wait", "--json", "--", "x").stdout)
    assert bare["status"] == "PENDING"


def test_json_is_alone_on_stdout() -> None:
    done = invoke(FakeJobs(log=[BEGINS, "epoch 1\n"]), "submit", "--json", "--id", "a", "--", "x")
    assert (done.exit_code, json.loads(done.stdout)["status"]) == (0, "SUCCEEDED")
    assert done.stderr.splitlines()[-1] == "epoch 1"


ENDINGS = [
    pytest.param([BEGINS], "FAILED", 1, "fedpilot: job a failed: exit code 1", id="it failed"),
    pytest.param([BEGINS], "STOPPED", 1, "fedpilot: job a was stopped", id="it was stopped"),
    pytest.param(BEFORE, "STOPPED", 1, "fedpilot: job a was stopped", id="stopped in the queue"),
    pytest.param(BEFORE, "FAILED", 3, "fedpilot: job a never began: exit code 1", id="it gave up"),
]


@pytest.mark.parametrize(("log", "ends", "code", "last"), ENDINGS)
def test_the_exit_code_tells_how_it_ended(
    log: Sequence[str], ends: str, code: int, last: str
) -> None:
    jobs = FakeJobs(log=log, ends=ends)
    jobs.message = "exit code 1"
    done = invoke(jobs, "submit", "--id", "a", "--", "x")
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.splitlines()[-1] == last


LEAVES = f"fedpilot: virtual cluster a has to leave its places to b in 10 s: less; {TOLD}\n"
ENDED = f"fedpilot: exit code 143: {OVER}\n"
PREEMPTED = "preempted by b: less (reclaim-quota)"


def test_a_preempted_job_that_should_not_run_again_has_a_code_of_its_own() -> None:
    jobs = FakeJobs(log=[BEGINS, "one\n", LEAVES, ENDED, f"fedpilot: {PREEMPTED}\n"], ends="FAILED")
    jobs.message = PREEMPTED
    done = invoke(jobs, "submit", "--on-preempt", "fail", "--id", "a", "--", "x")
    assert (done.exit_code, done.stdout) == (75, "one\n")
    assert jobs.submitted[0]["on_preempt"] == "fail"
    assert done.stderr.splitlines() == [
        "fedpilot: job a is submitted",
        LEAVES.strip(),
        ENDED.strip(),
        f"fedpilot: {PREEMPTED}",
        "fedpilot: job a failed",
    ]


def test_a_job_that_runs_again_has_its_output_alone_on_stdout() -> None:
    again = f"fedpilot: virtual cluster a is active; attempt 2: {READY}\n"
    jobs = FakeJobs(log=[*BEFORE, BEGINS, "one\n", LEAVES, "sav", "ed\n", ENDED, again, "two\n"])
    done = invoke(jobs, "submit", "--id", "a", "--", "x")
    assert (done.exit_code, done.stdout) == (0, "one\nsaved\ntwo\n")
    assert done.stderr.splitlines()[-3:] == [LEAVES.strip(), ENDED.strip(), again.strip()]


def test_what_ray_said_is_shown_if_it_could_not_start_the_job() -> None:
    jobs = FakeJobs(log=["Runtime env setup failed:\nno such package\n"], ends="FAILED")
    jobs.message = "Runtime env setup failed:"
    assert invoke(jobs, "submit", "--id", "a", "--", "x").stderr.splitlines() == [
        "fedpilot: job a is submitted",
        "Runtime env setup failed:",
        "no such package",
        "fedpilot: job a never began: Runtime env setup failed:",
    ]


def test_why_it_never_began_is_said_once() -> None:
    why = "virtual cluster 'speech' did not get its places in 1.1 s: its deadline is over"
    jobs = FakeJobs(log=[*BEFORE, f"fedpilot: {why}\n"], ends="FAILED")
    jobs.message = why
    assert invoke(jobs, "submit", "--id", "speech", "--", "x").stderr.splitlines() == [
        "fedpilot: job speech is submitted",
        "fedpilot: virtual cluster speech is waiting (position 1): it needs 4 CPU, and there is "
        "room for 2 CPU only",
        f"fedpilot: {why}",
        "fedpilot: job speech never began",
    ]


BAD = [
    pytest.param([], "give the command to run", id="no command"),
    pytest.param(["--min", "CPU=x", "--", "x"], "wanted NAME=AMOUNT", id="no amount"),
    pytest.param(
        ["--virtual-cluster", "{", "--", "x"], "--virtual-cluster: wanted JSON", id="json"
    ),
    pytest.param(
        ["--virtual-cluster", '{"cpus": 1}', "--", "x"],
        "--virtual-cluster: a virtual cluster: unknown key",
        id="a key",
    ),
    pytest.param(
        ["--virtual-cluster", "{}", "--min", "CPU=1", "--", "x"], "--virtual-cluster JSON", id="two"
    ),
    pytest.param(["--spec", "/no/such.yaml", "--", "x"], "there is no such file", id="no file"),
    pytest.param(["--in", "a", "--min", "CPU=1", "--", "x"], "--in uses", id="a spec to join"),
    pytest.param(["--in", "a", "--deadline", "5", "--", "x"], "--in uses", id="join with deadline"),
    pytest.param(["--in", "a", "--project", "b", "--", "x"], "--in uses", id="join in a project"),
    pytest.param(["--id", "a/b", "--", "x"], "name: ", id="an id that is no name"),
    pytest.param(["--runtime-env", "[]", "--", "x"], "wanted an object", id="runtime env"),
    pytest.param(
        ["--runtime-env", '{"env_vars": {"A": 1}}', "--", "x"], "wanted texts", id="a variable"
    ),
    pytest.param(["--working-dir", "/no/where", "--", "x"], "wanted a folder", id="no folder"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD)
def test_what_is_wrong_is_told_before_ray_is_touched(arguments: list[str], said: str) -> None:
    done = invoke(None, "submit", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


REFUSED = [
    pytest.param(NeverFits("a", "it needs 40 CPU", 0), 3, "it needs 40 CPU", id="never fits"),
    pytest.param(NoSuchCluster("team"), 2, "no virtual cluster 'team'", id="nobody to join"),
    pytest.param(SpecError("id: there was a job"), 2, "was a job", id="the id was used"),
    pytest.param(ClusterUnreachable("h:1", "runs none"), 4, "runs none", id="no dashboard"),
]


@pytest.mark.parametrize(("error", "code", "said"), REFUSED)
def test_a_refusal_has_its_code(error: FabricError, code: int, said: str) -> None:
    jobs = FakeJobs()
    jobs.fails = error
    done = invoke(jobs, "submit", "--", "x")
    assert (done.exit_code, done.stdout, jobs.submitted) == (code, "", [])
    assert said in done.stderr
    assert "is submitted" not in done.stderr


def test_a_job_that_ray_does_not_begin_is_spoken_of_until_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its runtime environment may take minutes, in which nothing else is printed."""
    monkeypatch.setattr(job_cli, "QUIET_S", 0.01)
    monkeypatch.setattr(job_cli, "REPEATED_S", 0.01)
    told = threading.Event()
    echo = click.echo

    def heard(message: object = None, **options: Any) -> None:
        echo(message, **options)
        if "runtime environment" in str(message):
            told.set()

    monkeypatch.setattr(click, "echo", heard)

    class Slow(FakeJobs):
        def follow(self, id: str) -> Iterator[str]:
            assert told.wait(60)
            yield from super().follow(id)

    done = invoke(Slow(log=["output\n"]), "submit", "--id", "a", "--", "x")
    assert "job a has waited for 0 s: Ray has not started it" in done.stderr
    assert "runtime environment" not in done.stdout


def test_an_interruption_leaves_the_job_and_says_how_to_go_on() -> None:
    class Interrupted(FakeJobs):
        def follow(self, id: str) -> Iterator[str]:
            yield BEGINS
            raise KeyboardInterrupt

    words = ["submit", "--id", "a", "--address", "h:1", "--", "x"]
    done = invoke(Interrupted(), *words)
    assert (done.exit_code, done.stdout) == (130, "")
    assert done.stderr.splitlines()[1:] == [
        "fedpilot: interrupted; job a goes on",
        "  its log: fedpilot job logs a --follow --address h:1",
        "  stop it: fedpilot job stop a --address h:1",
    ]


def test_an_interruption_before_ray_has_answered_does_not_say_that_the_job_goes_on() -> None:
    class Interrupted(FakeJobs):
        def submit(
            self, command: Sequence[str], spec: VirtualCluster | None = None, **options: Any
        ) -> str:
            raise KeyboardInterrupt

    done = invoke(Interrupted(), "submit", "--id", "a", "--", "x")
    assert (done.exit_code, done.stdout) == (130, "")
    assert done.stderr.splitlines() == [
        "fedpilot: interrupted; job a may be submitted, or not",
        "  see: fedpilot job show a",
        "  stop it: fedpilot job stop a",
    ]
