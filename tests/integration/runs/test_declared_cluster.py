"""A run on a Ray cluster that its config declares: it grows for the run, and ends with it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from fedpilot.fabric.core.ray_clusters.declaration import LEDGER
from real_ray import REPOSITORY, eventually, fedpilot

pytestmark = [pytest.mark.ray, pytest.mark.slow]

CLUSTER = """
metadata: {name: grows}
spec:
  headGroupSpec: {rayStartParams: {num-cpus: "1"}}
  workerGroupSpecs:
  - {groupName: small, replicas: 1, maxReplicas: 2, rayStartParams: {num-cpus: "1"}}
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


def own_folders(folder: Path) -> list[Path]:
    """What a cluster of one command keeps while it lives."""
    return [*folder.glob("fedpilot-own-*")]


def test_a_run_has_the_digest_of_any_other_on_a_cluster_that_grows_for_it(tmp_path: Path) -> None:
    digests = []
    for name, overrides in (("private", ()), ("declared", on_cluster(tmp_path))):
        with fedpilot(run(tmp_path, name, *overrides), tmp_path, TMPDIR=str(tmp_path)) as command:
            _, said = command.process.communicate(timeout=600)
        assert command.process.returncode == 0, said
        digests.append(json.loads((tmp_path / name / "manifest.json").read_text())["digest"])
    assert digests[0] == digests[1]
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
