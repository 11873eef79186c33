"""A run on a Ray cluster that its config declares: one that grows for the run and ends with it, or
one that runs already and goes on."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from fedpilot.fabric.core.ray_clusters.declaration import LEDGER
from fedpilot.fabric.ray.control_plane.probe import probe
from real_ray import REPOSITORY, eventually, fedpilot, ray_head

pytestmark = [pytest.mark.ray, pytest.mark.slow]

CLUSTER = """
metadata: {name: grows}
spec:
  headGroupSpec: {rayStartParams: {num-cpus: "1"}}
  workerGroupSpecs:
  - {groupName: small, replicas: 1, maxReplicas: 2, rayStartParams: {num-cpus: "1"}}
"""
EXISTING = """
metadata: {{name: lab}}
spec: {{fedpilot: {{provider: existing, address: '{address}'}}}}
"""
PATIENCE_S = 120.0
QUICK = ("federation.rounds=3", "outputs.curves=false")


def run(folder: Path, name: str, *overrides: str) -> list[str]:
    config = str(REPOSITORY / "configs" / "quickstart.yaml")
    given = [each for value in (*QUICK, *overrides) for each in ("--set", value)]
    return ["run", config, "--folder", str(folder), "--run-id", name, *given]


def on_cluster(folder: Path) -> tuple[str, ...]:
    """Overrides for a run that needs all that the declaration allows."""
    (folder / "grows.yaml").write_text(CLUSTER)
    return f"resources.ray.cluster={folder / 'grows.yaml'}", "resources.workers=3"


def on_existing(folder: Path, address: str) -> tuple[str, ...]:
    """Overrides for a run on a Ray that runs already."""
    (folder / "lab.yaml").write_text(EXISTING.format(address=address))
    return f"resources.ray.cluster={folder / 'lab.yaml'}", "resources.workers=2"


def own_folders(folder: Path) -> list[Path]:
    """What a cluster of one command keeps while it lives."""
    return [*folder.glob("fedpilot-own-*")]


def digest(folder: Path, name: str, *overrides: str) -> str:
    """The digest of a run's model."""
    with fedpilot(run(folder, name, *overrides), folder, TMPDIR=str(folder)) as command:
        _, said = command.process.communicate(timeout=600)
    assert command.process.returncode == 0, said
    return str(json.loads((folder / name / "manifest.json").read_text())["digest"])


def test_a_run_has_the_digest_of_any_other_on_declared_clusters(tmp_path: Path) -> None:
    private = digest(tmp_path, "private")
    assert digest(tmp_path, "declared", *on_cluster(tmp_path)) == private
    with ray_head(num_cpus=2) as address:
        assert digest(tmp_path, "existing", *on_existing(tmp_path, address)) == private
        probe(address, "disabled", PATIENCE_S)  # the Ray goes on
    assert own_folders(tmp_path) == []


@pytest.mark.soak
def test_the_cluster_ends_with_a_run_that_is_killed(tmp_path: Path) -> None:
    arguments = run(tmp_path, "killed", *on_cluster(tmp_path))
    with fedpilot(arguments, tmp_path, TMPDIR=str(tmp_path)) as command:
        eventually(lambda: bool(raylets(tmp_path)), PATIENCE_S, "a machine starts")
        command.process.send_signal(signal.SIGKILL)
        command.process.wait()
        eventually(lambda: not raylets(tmp_path), PATIENCE_S, "no machine is left")


def raylets(folder: Path) -> list[int]:
    """The processes of Ray whose ledger of virtual clusters lies in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (
                (process / each).read_bytes() for each in ("cmdline", "environ")
            )
        except OSError:  # it has just ended
            continue
        if b"raylet" in command and f"{LEDGER}={folder}".encode() in environment:
            found.append(int(process.name))
    return found
