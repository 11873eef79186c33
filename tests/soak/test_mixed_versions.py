"""Two versions of fedpilot work together: on one Ray, in one federation, and one after the other.

`old` is the version before the rooms, `new` is the code here. Both are real processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedpilot as fedpilot_package
from real_ray import eventually, fedpilot, free_port, ray_head
from versions import LIBRARIES, NEW, Version, environment, old_version, site_packages

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(1800)]

CONFIG = """
run: {random_seed: 7}
federation: {number_of_clients: 6, clients_per_round: 4, rounds: 4}
model: {model_type: logistic_regression}
data: {dataset_type: digits}
training: {batch_size: 5, execution: sequential, number_of_epochs: 40}
resources: {workers: 1}
"""
DRIVER = """
import sys
import ray
import fedpilot.fabric as fabric

if len(sys.argv) > 1:
    room = fabric.VirtualCluster(flex_resource_min={"CPU": 1}, flex_resource_max={"CPU": 2})
    fabric.init(address=sys.argv[1], virtual_cluster=room, logging_level="ERROR")
else:
    ray.init(logging_level="ERROR")

@ray.remote
def square(n):
    return n * n

@ray.remote
class Outer:
    def squares(self):
        return ray.get([square.options(num_cpus=0).remote(n) for n in range(3)])

outer = Outer.remote()
print(ray.get(square.remote(3)), ray.get(outer.squares.remote()), flush=True)
"""
PRINTED = "9 [0, 1, 4]"
PID = """
import sys
import ray
from fedpilot.fabric.virtual_clusters import VirtualClusters

ray.init(address=sys.argv[1], logging_level="ERROR")
print(VirtualClusters().call("pid"))
"""


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Version]:
    return {"old": old_version(tmp_path_factory.mktemp("versions")), "new": NEW}


@pytest.fixture(scope="module")
def digest(versions: dict[str, Version], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the model that the old version makes of the config when nothing happens."""
    folder = tmp_path_factory.mktemp("calm")
    (folder / "config.yaml").write_text(CONFIG)
    done = versions["old"].fedpilot("run", "config.yaml", "--json", folder=folder)
    return str(events(done.stdout, "run_finished")[-1]["digest"])


def events(printed: str, name: str) -> list[dict[str, Any]]:
    """Those of that name among what a command with --json has printed."""
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return [each for each in found if each["event"] == name]


# -- on one Ray -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "driver"),
    [
        pytest.param("new", "old", id="old drivers call a new manager"),
        pytest.param("old", "new", id="new drivers call an old manager"),
    ],
)
def test_drivers_of_one_version_use_the_manager_of_another(
    versions: dict[str, Version], host: str, driver: str, tmp_path: Path
) -> None:
    theirs, ours = versions[host], versions[driver]
    (tmp_path / "driver.py").write_text(DRIVER)
    (tmp_path / "config.yaml").write_text(CONFIG)
    dashboard = (f"--dashboard-port={free_port()}", f"--dashboard-agent-listen-port={free_port()}")
    with ray_head(python=theirs.python, more=dashboard) as address:
        at = ("--address", address)
        for version, other in ((ours, theirs), (theirs, ours)):  # ours has the manager started
            mine = f"of-{version}"
            command = ("cluster", "create", mine, "--min", "CPU=1", *at, "--json")
            made = json.loads(version.fedpilot(*command, folder=tmp_path).stdout)
            assert made["state"] == "active"
            listed = other.fedpilot("cluster", "list", *at, "--json", folder=tmp_path)
            assert mine in [each["id"] for each in json.loads(listed.stdout)["clusters"]]
            ran = version.run("driver.py", address, folder=tmp_path)
            assert ran.stdout.strip() == PRINTED
            other.fedpilot("cluster", "delete", mine, *at, folder=tmp_path)
        huge = ("cluster", "create", "huge", "--min", "CPU=64", *at)
        assert "huge" in ours.fedpilot(*huge, folder=tmp_path, code=3).stderr
        run = ("run", "config.yaml", "--set", f"resources.ray.address={address}")
        refused = ours.fedpilot(*run, folder=tmp_path, code=4).stderr
        assert "cannot import 'fedpilot." in refused or "another version of fedpilot" in refused
        script = (ours.python, str(tmp_path / "driver.py"))
        submit = ("job", "submit", "--min", "CPU=1", "--max", "CPU=2", *at, "--", *script)
        assert PRINTED in ours.fedpilot(*submit, folder=tmp_path).stdout


def test_a_manager_that_is_upgraded_in_place_keeps_its_ledger(
    versions: dict[str, Version], tmp_path: Path
) -> None:
    old = site_packages(Path(versions["old"].python).parents[1])
    machine = environment(tmp_path / "machine", LIBRARIES, str(old))
    package = site_packages(tmp_path / "machine") / "fedpilot"
    package.symlink_to(old / "fedpilot")

    def kept() -> Any:
        shown = machine.fedpilot("cluster", "show", "kept", *at, "--json", folder=tmp_path)
        return json.loads(shown.stdout)

    (tmp_path / "driver.py").write_text(DRIVER)
    with ray_head(python=machine.python) as address:
        at = ("--address", address)
        create = ("cluster", "create", "kept", "--node", "2xCPU=1", *at, "--json")
        machine.fedpilot(*create, folder=tmp_path)
        before = kept()
        pid = int(machine.run("-c", PID, address, folder=tmp_path).stdout)
        package.unlink()
        package.symlink_to(Path(fedpilot_package.__file__).parent)
        ran = machine.run("driver.py", address, folder=tmp_path)
        assert ran.stdout.strip() == PRINTED, "the manager is of the old version still"
        os.kill(pid, signal.SIGKILL)
        assert kept() == before
        assert machine.run("driver.py", address, folder=tmp_path).stdout.strip() == PRINTED
        versions["old"].fedpilot("cluster", "delete", "kept", *at, folder=tmp_path)


# -- one after the other ----------------------------------------------------------------------


def test_a_run_that_the_old_version_began_goes_on_in_the_new_one(
    versions: dict[str, Version], digest: str, tmp_path: Path
) -> None:
    old, new = versions["old"], versions["new"]
    (tmp_path / "config.yaml").write_text(CONFIG)
    begin = ("run", "config.yaml", "--json", "--run-id", "begun")
    with fedpilot(begin, tmp_path, python=old.python) as run:
        run.wait_for("round_started", round=2)
        run.signal(signal.SIGKILL)
    resumed = new.fedpilot("run", "--resume", "begun", "--json", folder=tmp_path).stdout
    assert events(resumed, "run_finished")[-1]["digest"] == digest
    assert digest in new.fedpilot("runs", "show", "begun", folder=tmp_path).stdout
    new.fedpilot("runs", "verify", "begun", folder=tmp_path)
    more = ("--set", "federation.rounds=6")
    after = ("run", "--from", "begun", "--run-id", "after", "--json", *more)
    started = new.fedpilot(*after, folder=tmp_path).stdout
    assert events(started, "run_finished")[-1]["status"] == "finished"


# -- in one federation ------------------------------------------------------------------------


class Federation:
    """A mediator, one site with a private Ray, and users, whose versions change as one likes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._at = f"127.0.0.1:{free_port()}"
        self._join_port = free_port()
        (folder / "config.yaml").write_text(CONFIG)

    @contextlib.contextmanager
    def mediator(self, version: Version) -> Iterator[None]:
        start = ("mediator", "start", "--folder", "hub", "--listen", self._at, "--json")
        options = ("--join-port", str(self._join_port))
        with fedpilot((*start, *options), self.folder, python=version.python) as process:
            process.wait_for("mediator_ready")
            yield
            process.signal(signal.SIGTERM)
            process.process.wait(60)

    @contextlib.contextmanager
    def agent(self, version: Version) -> Iterator[None]:
        """The agent of the site; once it has joined it needs no token."""
        token = self.folder / "token"
        told: tuple[str, ...] = ()
        if not token.exists():
            token.write_text(self.ask(version, "site", "token", "oslo").split()[-1])
            told = ("--token-file", str(token))
        join = ("site", "join", "--name", "oslo", "--home", "oslo", "--mediator", self._at)
        options = ("--ray-address", "private", "--json", *told)
        with fedpilot((*join, *options), self.folder, python=version.python) as process:
            eventually(lambda: self.state(version) == "ready", 240, "the site is ready")
            yield
            process.signal(signal.SIGTERM)
            process.process.wait(60)

    def state(self, version: Version) -> str:
        sites = json.loads(self.ask(version, "site", "list", "--json"))["sites"]
        return str(sites[0]["state"]) if sites else ""

    def access(self) -> tuple[str, ...]:
        return "--mediator", self._at, "--credentials", "hub/admin"

    def ask(self, version: Version, *arguments: str, code: int = 0) -> str:
        """What a command of a user prints."""
        return version.fedpilot(*arguments, *self.access(), folder=self.folder, code=code).stdout


@pytest.mark.parametrize(
    ("mediator", "agent", "user"),
    [
        pytest.param("new", "old", "old", id="old sites and users come to a new mediator"),
        pytest.param("old", "new", "new", id="new sites and users come to an old mediator"),
    ],
)
def test_a_federation_of_two_versions_makes_the_model_of_one(
    versions: dict[str, Version], digest: str, tmp_path: Path, mediator: str, agent: str, user: str
) -> None:
    here, asks = Federation(tmp_path), versions[user]
    with here.mediator(versions[mediator]), here.agent(versions[agent]):
        ran = here.ask(asks, "run", "config.yaml", "--run-id", "first", "--json")
        assert events(ran, "run_finished")[-1]["digest"] == digest
        assert "first" in here.ask(asks, "runs", "list")
        assert json.loads(here.ask(asks, "runs", "show", "first", "--json"))["digest"] == digest
        followed = here.ask(asks, "runs", "attach", "first", "--json")
        assert events(followed, "run_finished")[-1]["digest"] == digest
        here.ask(asks, "runs", "fetch", "first", "--to", "first")

        long = ("run", "config.yaml", "--run-id", "second", "--set", "federation.rounds=1000")
        with fedpilot((*long, "--json", *here.access()), tmp_path, python=asks.python) as run:
            run.wait_for("round_finished")
            here.ask(asks, "runs", "stop", "second")
            run.finish()
            assert run.last("run_finished")["status"] != "finished"


def test_a_federation_is_upgraded_while_a_run_goes_on(
    versions: dict[str, Version], digest: str, tmp_path: Path
) -> None:
    old, new, here = versions["old"], versions["new"], Federation(tmp_path)
    with here.mediator(old), here.agent(old):
        ran = here.ask(old, "run", "config.yaml", "--run-id", "before", "--json")
        assert events(ran, "run_finished")[-1]["digest"] == digest
        begin = ("run", "config.yaml", "--run-id", "across", "--json", *here.access())
        with fedpilot(begin, tmp_path, python=old.python) as run:
            run.wait_for("round_started", round=2)
    with here.mediator(new), here.agent(new):
        followed = here.ask(new, "runs", "attach", "across", "--json")
        assert events(followed, "run_finished")[-1]["digest"] == digest
        assert json.loads(here.ask(new, "runs", "show", "before", "--json"))["digest"] == digest
        here.ask(new, "runs", "fetch", "before", "--to", "fetched/before")
    new.fedpilot("runs", "verify", "before", "--folder", "fetched", folder=tmp_path)
