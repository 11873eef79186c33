"""Clients' labels: counted in the data that is here, or as sites disclose them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import site_data
from federations import Lab, in_time
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation
from fedpilot.federated.core.planning.plan import planned
from fedpilot.federated.errors import ConfigError
from fedpilot.federated.federation.setup.planning import inputs_of_plan
from fedpilot.federated.prepare.inputs.labels import labels_of
from fedpilot.mediator import members
from graph_runs import NAMES, over, run_over

AFFINITY = {"federation__assignment": "data_affinity"}
SHARDS = {
    "data__data_distribution_kind": "shards",
    "data__dirichlet_beta": None,
    "data__labels_per_client": 1,
}
"""Each client has one of three labels."""


@pytest.mark.parametrize("at_once", [1, 5, 1 << 14])
def test_labels_are_counted_client_by_client(
    at_once: int, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpilot.federated.prepare.inputs.labels.AT_ONCE", at_once)
    inputs = lab.federation().loaded.inputs
    found, data = labels_of(inputs), inputs.data
    assert found is not None
    for client, labels in enumerate(found):
        mine = data.y[data.partition.indices(client)]
        assert labels.tolist() == np.bincount(mine, minlength=data.num_classes).tolist()


def test_clients_of_one_label_are_at_one_site_and_no_bits_change(lab: Lab) -> None:
    """Three kinds of clients, three sites."""
    alone = run_over(lab, NAMES[:1], **SHARDS)
    with over(lab, NAMES, **SHARDS, **AFFINITY) as federation:
        run = in_time(federation.run)
        assert federation.gang.mediator is not None
        assignment = federation.gang.mediator.membership.assignment
        loaded = federation.loaded
        why = federation.nodes.why_there(0)
    labels = labels_of(loaded.inputs)
    assert labels is not None
    kinds = {site: set(labels.argmax(axis=1)[members(s)]) for site, s in assignment.shares.items()}
    assert all(len(each) == 1 for each in kinds.values())
    assert run.digest == alone.digest
    assert "similar labels together, leaves 0.0% of the variation of labels within sites" in why
    plan = planned(inputs_of_plan(loaded, "r"), [], dict.fromkeys(NAMES, 1))
    assert plan.assignment == assignment
    assert loaded.shares_among(NAMES) == assignment.shares


def test_labels_that_the_assignment_does_not_ask_for_are_not_counted(lab: Lab) -> None:
    assert lab.federation().loaded.inputs.labels is None


# -- data at sites -------------------------------------------------------------------------------

CLIENTS = {name: 12 for name in ("anna", "ben", "cleo", "dora", "emil", "faye")}
"""Every other one has label 0, the others label 2."""


def everywhere(folder: Path, *sites: dict[str, str], **keys: Any) -> Federation:
    """Sites that hold the same clients, and disclose this."""
    files = []
    for number, disclose in enumerate(sites):
        told = {"disclose": {"ids": "exact", **disclose}, "residency": "movable"}
        section = site_data.column(folder / f"{number}", CLIENTS, **told)
        with np.load(folder / f"{number}" / "all.npz") as arrays:
            held = dict(arrays)
        kinds = {client: 2 * (place % 2) for place, client in enumerate(CLIENTS)}
        held["y"] = np.array([kinds[client] for client in held["patient"].tolist()])
        np.savez(folder / f"{number}" / "all.npz", **held)
        files.append(site_data.site_file(folder / f"{number}.yaml", "scans", section))
    config = site_data.config(files, folder / "runs", **AFFINITY, **keys)
    return Federation(config, cluster=FakeCluster([fake_machine("a", CPU=8)]))


@pytest.mark.parametrize("told", ["exact", "rounded", "noised"])
def test_movable_clients_are_divided_by_the_labels_that_sites_disclose(
    told: str, tmp_path: Path
) -> None:
    with everywhere(tmp_path, {"client_labels": told}, {"client_labels": told}) as federation:
        in_time(federation.run)
        assert federation.gang.mediator is not None
        shares = federation.gang.mediator.membership.assignment.shares
    assert {tuple((members(share) % 2).tolist()) for share in shares.values()} == {
        (0, 0, 0),
        (1, 1, 1),
    }


def test_a_site_that_discloses_no_labels_is_named_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        everywhere(tmp_path, {}, {})
    (problem,) = raised.value.problems
    assert problem.key == "federation.assignment"
    assert "do not leave site site_1, site_2" in problem.found
    assert "disclose.client_labels" in problem.allowed
