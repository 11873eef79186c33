"""A run that fedpilot 0.1 left when it was killed in round 2, with a journal, is understood."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from federations import Lab, Log, one_by_one
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation, load_config
from fedpilot.federated.site.workload import FederatedWorkload
from fedpilot.mediator import Payload, SiteContext

THEIRS = Path(__file__).with_name("run-of-0.1")
"""Written by commit 11fbf80; its paths and its machine have other names."""

KEYS = {"config", "defaults", "materials", "paths", "version"}
"""What a coordinator tells a site of a run: the site may have another version."""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Where a copy of it lies, as the run `begun`."""
    shutil.copytree(THEIRS, tmp_path / "begun")
    return tmp_path


def manifest(runs: Path) -> Any:
    return json.loads((runs / "begun" / "manifest.json").read_text())


def test_it_is_resumed_and_only_what_its_journal_lacks_is_trained(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one(monkeypatch)
    saved = load_file(THEIRS / "journal" / "local.safetensors")["done"]
    config = load_config(str(runs / "begun" / "config.yaml"), [f"outputs.folder={runs}"])
    log, cluster = Log(), FakeCluster([fake_machine("a", CPU=8)])
    with Federation(config, observers=[log], cluster=cluster) as federation:
        result = federation.resume("begun")
    first = log.of("round_finished")[0]
    assert (first["round"], first["clients"], len(saved)) == (2, 5, 4)
    assert (cluster.faults._calls["train"], len(log.of("round_finished"))) == (1 + 5, 2)
    assert (result.rounds, manifest(runs)["status"]) == (3, "finished")


def test_sites_are_told_of_a_run_by_the_keys_that_every_version_reads(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Payload] = []
    prepare = FederatedWorkload.prepare

    def heard(self: FederatedWorkload, spec: Payload, site: SiteContext) -> None:
        told.append(spec)
        prepare(self, spec, site)

    monkeypatch.setattr(FederatedWorkload, "prepare", heard)
    lab.run(federation__rounds=1)
    assert {key for spec in told for key in spec.header} == KEYS
