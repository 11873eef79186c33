"""Jobs wait for places, are stopped, fail, give up, and go on without whoever follows them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpilot.fabric import VirtualCluster
from fedpilot.fabric.errors import SpecError
from fedpilot.fabric.jobs.jobs import Jobs
from rays.jobs import ONE, SLEEPER, clusters, ended, processes, script, submitted, two_machines
from rays.machines import PATIENCE_S
from real_ray import eventually, fedpilot, ray_head

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with two_machines() as found:
        yield found


@pytest.fixture(scope="module")
def jobs(address: str) -> Jobs:
    return Jobs()


def test_a_second_job_waits_saying_why_and_runs_when_the_first_ends(
    jobs: Jobs, tmp_path: Path, address: str
) -> None:
    command, end = script(tmp_path, SLEEPER), tmp_path / "end"
    first = jobs.submit([*command, str(end)], VirtualCluster(flex_resource_min={"CPU": 3}))
    eventually(lambda: "it runs" in jobs.logs(first), PATIENCE_S, "the first runs")
    words = ["job", "submit", "--id", "later", "--min", "CPU=2", "--address", address]
    with fedpilot([*words, "--", "echo", "my turn"], tmp_path) as later:
        eventually(lambda: "later" in clusters(jobs), PATIENCE_S, "the second asks")
        eventually(lambda: jobs.show("later").status == "WAITING", PATIENCE_S, "it waits")
        waiting = jobs.show("later")
        assert waiting.cluster is not None
        assert waiting.cluster["position"] == 1
        assert "2 CPU" in waiting.message
        eventually(lambda: "(position 1)" in jobs.logs("later"), PATIENCE_S, "it says so")
        end.touch()
        assert later.process.stdout is not None
        output = later.process.stdout.read()
        assert later.process.wait(PATIENCE_S) == 0
        said = later.error()
    assert output == "my turn\n"
    lines = said.splitlines()
    assert lines[0] == "fedpilot: job later is submitted"
    assert len([line for line in lines if "(position 1): " in line and "2 CPU" in line]) >= 1
    assert len(lines) == len(set(lines)), said
    assert ended(jobs, first).status == "SUCCEEDED"
    assert [job.id for job in jobs.list()][:2] == ["later", first]


def test_stopping_ends_the_command_and_what_waits_leaves_the_queue(
    jobs: Jobs, tmp_path: Path
) -> None:
    command, marker = script(tmp_path, SLEEPER), str(tmp_path / "never")
    first = jobs.submit([*command, marker], VirtualCluster(flex_resource_min={"CPU": 4}))
    eventually(lambda: "it runs" in jobs.logs(first), PATIENCE_S, "the first runs")
    second = jobs.submit([*command, marker + "2"], ONE)
    eventually(lambda: jobs.show(second).status == "WAITING", PATIENCE_S, "the second waits")
    assert jobs.stop(second)
    assert ended(jobs, second).status == "STOPPED"
    assert "Traceback" not in jobs.logs(second)
    assert processes(marker)
    assert jobs.stop(first)
    assert ended(jobs, first).status == "STOPPED"
    eventually(lambda: not processes(marker), 60, "no process of theirs is left")
    assert not jobs.stop(first)


def test_a_script_that_fails_is_a_failed_job_with_its_traceback(
    jobs: Jobs, tmp_path: Path, address: str
) -> None:
    command = script(tmp_path, "print('so far so good', flush=True)\n1 / 0\n")
    done = submitted(address, "--id", "wrong", "--", *command)
    assert (done.returncode, "so far so good" in done.stdout) == (1, True)
    assert "ZeroDivisionError" in done.stdout
    assert done.stderr.splitlines()[-1] == (
        "fedpilot: job wrong failed: Job entrypoint command failed with exit code 1"
    )
    job = ended(jobs, "wrong")
    assert (job.status, job.message) == ("FAILED", "Job entrypoint command failed with exit code 1")
    assert "ZeroDivisionError" in "".join(jobs.follow("wrong"))
    with pytest.raises(SpecError, match="choose a new one"):
        jobs.submit(["true"], id="wrong")


def test_a_job_that_gives_up_is_refused_without_having_begun(jobs: Jobs, address: str) -> None:
    jobs.clusters.create("all", VirtualCluster(flex_resource_min={"CPU": 4}))
    try:
        done = submitted(address, "--min", "CPU=1", "--deadline", "1", "--", "echo", "no")
    finally:
        jobs.clusters.delete("all")
    assert (done.returncode, done.stdout) == (3, "")
    assert "did not get its places" in done.stderr


def test_an_interruption_leaves_the_job_running(jobs: Jobs, tmp_path: Path, address: str) -> None:
    command, end = script(tmp_path, SLEEPER), tmp_path / "end"
    words = ["job", "submit", "--id", "long", "--min", "CPU=1", "--address", address, "--"]
    with fedpilot([*words, *command, str(end)], tmp_path) as following:
        assert following.process.stdout is not None
        assert following.process.stdout.readline() == "it runs\n"
        following.signal(signal.SIGINT)
        assert following.process.wait(60) == 130
        told = following.error()
    assert "job long goes on" in told
    assert f"fedpilot job stop long --address {address}" in told
    assert "Traceback" not in told
    assert jobs.show("long").status == "RUNNING"
    end.touch()
    assert ended(jobs, "long").status == "SUCCEEDED"


def test_without_a_dashboard_jobs_cannot_be_reached() -> None:
    with ray_head(num_cpus=1) as address:
        done = submitted(address, "--", "true")
    assert (done.returncode, done.stdout) == (4, "")
    assert "--include-dashboard=true" in done.stderr
