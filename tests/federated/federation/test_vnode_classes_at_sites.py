"""Sites find the vnode classes of their own clients, and each site reserves all classes."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import site_data
from federations import Lab
from fedpilot.fabric import VNode
from fedpilot.fabric.testing.fake_cluster import FakeCluster, FakeGroup, fake_machine
from fedpilot.federated import ConfigError, Federation
from fedpilot.federated.errors import DataUnusable
from fedpilot.federated.site.workers.node import FederatedNode
from fedpilot.mediator.federation.site import CLASS_LABEL

pytestmark = pytest.mark.timeout(120)

EAST = {"anna": 20, "ben": 12, "cleo": 9, "dan": 7}
WEST = {"dora": 15, "emil": 11, "fay": 8}
NAMES = [*EAST, *WEST]


def with_wards(folder: Path, clients: dict[str, int], **told: Any) -> dict[str, Any]:
    """A site's data with a column: the ward of a client is its name's first letter."""
    section = site_data.column(folder, clients, **told)
    with np.load(folder / "all.npz") as arrays:
        held = dict(arrays)
    wards = np.array([name[0] for name in held["patient"].tolist()])
    np.savez(folder / "all.npz", **held, ward=wards)
    return {**section, "options": {"columns": ["ward"]}}


def federation(
    folder: Path, groups: list[dict[str, Any]] | None, east: dict[str, int] = EAST, **told: Any
) -> Federation:
    sections = {"east": with_wards(folder / "east", east, **told)}
    sections["west"] = with_wards(folder / "west", WEST, **told)
    files = [
        site_data.site_file(folder / f"{name}.yaml", "scans", section)
        for name, section in sections.items()
    ]
    keys = {"federation__clients_per_round": None, "federation__rounds": 2}
    config = site_data.config(files, folder / "runs", **keys)
    config["federation"].pop("clients_per_round")
    if groups is not None:
        config["resources"] = {"groups": groups}
    cluster = FakeCluster([fake_machine("a", CPU=8)])
    return Federation(config, cluster=cluster, sites=["east", "west"])


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[int, set[int]]:
    """By the number of a vnode at its site: the clients that it trained."""
    found: dict[int, set[int]] = {}
    train = FederatedNode.train

    def training(node: Any, attempt: Any, clients: Any, *args: Any) -> Any:
        number = int(threading.current_thread().name.split("/")[-2])
        found.setdefault(number, set()).update(clients.tolist())
        return train(node, attempt, clients, *args)

    monkeypatch.setattr(FederatedNode, "train", training)
    return found


OPEN = {"disclose": {"ids": "exact", "counts": "exact"}}


@pytest.mark.parametrize(
    ("rule", "first", "told"),
    [
        pytest.param({"column": "ward", "values": ["a", "d"]}, {0, 3, 4}, {}, id="a column"),
        pytest.param({"ids": ["anna", "f*"]}, {0, 6}, OPEN, id="ids that are disclosed"),
        pytest.param({"ids": "east/*"}, {0, 1, 2, 3}, {}, id="ids that are not"),
    ],
)
def test_clients_of_sites_train_on_their_class(
    rule: dict[str, Any],
    first: set[int],
    told: dict[str, Any],
    tmp_path: Path,
    trained: dict[int, set[int]],
) -> None:
    groups = [{"name": "first", "workers": 1, "clients": rule}, {"name": "rest", "workers": 1}]
    with federation(tmp_path, groups, **told) as running:
        result = running.run()
    assert trained == {0: first, 1: set(range(7)) - first}
    with federation(tmp_path, None, **told) as running:
        assert running.run().digest == result.digest


def test_shares_are_found_by_each_site_for_its_own_clients(
    tmp_path: Path, trained: dict[int, set[int]]
) -> None:
    half = [{"name": "half", "workers": 1, "clients": {"share": 0.5}}, {"name": "r", "workers": 1}]
    with federation(tmp_path, half) as running:
        classes = running.loaded.inputs.classes
        assert classes is not None
        expected = set(np.flatnonzero(classes.of(np.arange(7)) == 0).tolist())
        running.run()
    assert 0 < len(expected) < 7
    assert trained == {0: expected, 1: set(range(7)) - expected}


def test_the_coordinator_checks_what_it_knows(tmp_path: Path) -> None:
    rest = {"name": "rest", "workers": 1}
    with pytest.raises(ConfigError, match="takes none of the clients"):
        federation(tmp_path, [{"name": "a", "workers": 1, "clients": {"ids": "north/*"}}, rest])
    lost = [{"name": "a", "workers": 1, "clients": {"ids": "east/*"}}]
    with pytest.raises(ConfigError, match="west/client_0, which no class takes"):
        federation(tmp_path, lost)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        pytest.param(
            {"column": "ward", "values": "[abcd]"},
            "client_1, which no class takes",
            id="a client that no class takes",
        ),
        pytest.param(
            {"column": "room", "values": "*"}, "`room`, which the data set", id="no such column"
        ),
    ],
)
def test_a_site_refuses_clients_without_a_class(
    rule: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    groups = [{"name": "a", "workers": 1, "clients": rule}]
    with (
        federation(tmp_path, groups) as running,
        pytest.raises(DataUnusable, match="its clients have no vnode class: ") as refused,
    ):
        running.start()
    assert problem in str(refused.value)


PAGE = Path(__file__).parents[3] / "docs/how-to/make-training-fast.md"
EXAMPLES = re.findall(r"```yaml\n(federation:.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=["by ids", "by share"])
def test_the_examples_in_the_docs_run(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(  # no GPU is needed
        "fedpilot.federated.site.workers.node.settle", lambda *_: torch.device("cpu")
    )
    path = tmp_path / "example.yaml"
    path.write_text(text)
    changes = ["federation.rounds=1", "federation.clients_per_round=8"]
    changes += [f"outputs.folder={tmp_path}", "outputs.curves=false"]
    machine = fake_machine("a", {"gpu-type": "a100"}, CPU=8, GPU=2, memory=8e9)
    with Federation(path, overrides=changes, cluster=FakeCluster([machine])) as running:
        assert running.run().rounds == 1


def test_a_class_goes_to_machines_with_its_labels(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: list[tuple[str, str]] = []
    start = FakeGroup.start_worker

    def starting(group: FakeGroup, vnode: VNode, *args: Any) -> Any:
        where.append((vnode.labels[CLASS_LABEL], vnode.machine))
        return start(group, vnode, *args)

    monkeypatch.setattr(FakeGroup, "start_worker", starting)
    machines = [fake_machine("a", {"zone": "z1"}, CPU=4), fake_machine("b", {"zone": "z2"}, CPU=4)]
    groups = [
        {"name": "there", "workers": 2, "labels": {"zone": "!z1"}, "clients": {"share": 0.5}},
        {"name": "here", "workers": 1, "labels": {"zone": "in(z0,z1)"}},
    ]
    config = lab.config(resources__workers=None, resources__groups=groups)
    with Federation(config, cluster=FakeCluster(machines)) as running:
        running.start()
    assert sorted(where) == [("here", "a"), ("there", "b"), ("there", "b")]
