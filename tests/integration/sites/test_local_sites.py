"""`sites: 3` without a mediator: three real Ray clusters here, and nothing of them afterwards."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

import faults
from real_ray import Command, eventually, fedpilot, session_of

pytestmark = pytest.mark.ray

NAMES = ["site_1", "site_2", "site_3"]
CONFIG = """
federation: {number_of_clients: 24, clients_per_round: 16, rounds: 3}
model: {model_type: mlp}
data: {dataset_type: digits}
training: {execution: sequential}
resources: {workers: 1, ray: {num_cpus: 1}}
"""
LONG = ("--set", "federation.rounds=4000")


def temporary_folders() -> set[str]:
    """The folders that private Rays and sites use now."""
    found = Path(tempfile.gettempdir()).glob("fedpilot-*")
    return {path.name for path in found if (path / "owner").exists()}


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Command]:
    """A run of the config; checked: no process of it is left, and no folder."""
    before = temporary_folders()
    (folder / "config.yaml").write_text(CONFIG)
    with fedpilot(["run", "config.yaml", "--json", "--run-id", "r", *arguments], folder) as run:
        yield run
        eventually(lambda: session_of(run.pid) == [], 60, "no process is left")
    assert temporary_folders() <= before


def runners_of(run: Command) -> list[psutil.Process]:
    """The processes of all sites' runners."""
    return [
        process
        for process in session_of(run.pid)
        if "fedpilot.mediator.agent.runner" in _words_of(process)
    ]


def _words_of(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess):
        return list(process.cmdline())
    return []


def runner_of(run: Command, site: str) -> psutil.Process:
    """The process of a site's runner."""
    (found,) = [process for process in runners_of(run) if site in _words_of(process)[-2]]
    return found


def kill_runners(run: Command) -> None:
    """Kill every runner of a run again and again, until the run ends."""
    while run.process.poll() is None:
        for process in runners_of(run):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.5)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the model that one process makes."""
    models = faults.alone(CONFIG, tmp_path_factory.mktemp("alone"))
    return models[max(models)]


@pytest.mark.slow
def test_three_sites_make_the_model_that_one_makes(alone: str, tmp_path: Path) -> None:
    with running(tmp_path, "--set", "sites=3") as run:
        assert run.finish() == 0, run.error()
    assert run.last("gang_reserved")["vnodes"] == dict.fromkeys(NAMES, 1)
    workers = [event for event in run.events if event["event"] == "worker_ready"]
    assert sorted(worker["site"] for worker in workers) == NAMES
    assert run.last("run_finished")["digest"] == alone
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["r"]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_site_whose_runner_is_killed_is_done_without_and_comes_back(tmp_path: Path) -> None:
    killed, calm = tmp_path / "killed", tmp_path / "calm"
    killed.mkdir()
    calm.mkdir()
    with running(killed, "--set", "sites=3", *LONG) as run:
        run.wait_for("round_finished", round=2)
        runner_of(run, "site_2").kill()
        run.wait_for("site_returned", site="site_2")
        run.wait_for("round_finished", round=run.last("round_finished")["round"] + 2)
        run.signal(signal.SIGINT, whole_group=True)
        assert run.finish(60) == 130, run.error()
    (lost,) = [event for event in run.events if event["event"] == "site_lost"]
    assert lost["site"] == "site_2"
    assert "killed by SIGKILL" in lost["reason"]
    last = run.last("run_finished")
    with running(calm, "--set", f"federation.rounds={last['rounds']}") as run:
        assert run.finish() == 0, run.error()
    assert run.last("run_finished")["digest"] == last["digest"]


@pytest.mark.soak
def test_where_every_runner_keeps_dying_the_run_fails_and_says_of_what(tmp_path: Path) -> None:
    """At once: nobody waits for sites that may not come back."""
    waits = ("--set", "participation.wait_for_sites_s=3600")
    with running(tmp_path, "--set", "sites=2", *waits, *LONG) as run:
        run.wait_for("round_finished", round=2)
        killer = threading.Thread(target=kill_runners, args=(run,))
        killer.start()
        assert run.finish(240) == 1
        killer.join(60)
        told = run.error()
        assert "killed by SIGKILL" in told
        assert "not started again" in told


@pytest.mark.soak
def test_without_a_site_that_is_required_it_fails(tmp_path: Path) -> None:
    sites = "sites={count: 3, required: [site_2]}"
    arguments = ("--set", sites, "--set", "participation.wait_for_sites_s=0.5", *LONG)
    with running(tmp_path, *arguments) as run:
        run.wait_for("round_finished", round=2)
        runner_of(run, "site_2").kill()
        assert run.finish() == 1
        assert "site_2" in run.error()
    assert run.last("run_finished")["status"] != "finished"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("awaited", "later_s"),
    [
        pytest.param("run_started", 0.3, id="as the sites start"),
        pytest.param("gang_reserved", 0.2, marks=pytest.mark.soak, id="as their workers start"),
        pytest.param("round_finished", 0.0, marks=pytest.mark.soak, id="in the middle of rounds"),
    ],
)
def test_ctrl_c_leaves_nothing(tmp_path: Path, awaited: str, later_s: float) -> None:
    with running(tmp_path, "--set", "sites=3", *LONG) as run:
        run.wait_for(awaited)
        time.sleep(later_s)
        run.signal(signal.SIGINT, whole_group=True)
        assert run.finish(60) == 130
        assert run.error() == ""
        assert run.last("run_finished")["status"] == "interrupted"


@pytest.mark.soak
def test_sites_end_when_the_run_is_killed_and_its_successor_goes_on(
    alone: str, tmp_path: Path
) -> None:
    before = temporary_folders()
    (tmp_path / "config.yaml").write_text(CONFIG)
    first = ["run", "config.yaml", "--json", "--run-id", "r", "--set", "sites=3"]
    with fedpilot(first, tmp_path) as run:
        run.wait_for("round_finished", round=1)
        run.signal(signal.SIGKILL)
        eventually(lambda: session_of(run.pid) == [], 60, "its sites have ended")
    with fedpilot(["run", "--resume", "r", "--json"], tmp_path) as run:
        assert run.finish() == 0, run.error()
    assert run.last("run_finished")["digest"] == alone
    assert temporary_folders() <= before, "what the first left was swept by the second"


def test_a_gang_that_no_site_could_hold_starts_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "--set", "sites=3", "--set", "resources.workers=2") as run:
        assert run.finish(60) == 3
        assert "--set resources.workers=1" in run.error()
