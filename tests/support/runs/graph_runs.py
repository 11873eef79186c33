"""Runs on a graph, at one site or at several, and the models that their clients have."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from federations import ALONE, CLIENTS, ROUNDS, Lab, in_time, on_a_graph
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation, RunResult
from fedpilot.federated.core.population.shares import taken
from fedpilot.federated.core.state import Array, digest
from fedpilot.federated.site.states.client_states import ClientStates
from fedpilot.mediator import members

NAMES = ("east", "north", "west")


def nodes_of(run: Path, after: int = ROUNDS, clients: int = CLIENTS) -> dict[str, Array]:
    """By name (clients, *shape): the models that a run's clients had after a round."""
    (file,) = (run / "journal").glob("*.clients.sqlite")
    with closing(ClientStates(file)) as states:
        return states.load_stack(np.arange(clients), after + 1).columns


def digests(nodes: dict[str, Array]) -> list[str]:
    count = len(next(iter(nodes.values())))
    return [digest({name: array[at] for name, array in nodes.items()}) for at in range(count)]


def over(lab: Lab, sites: Sequence[str], *observers: Any, **keys: Any) -> Federation:
    config = lab.config(**{**ALONE, "training__batch_size": 64, **on_a_graph(**keys)})
    cluster = FakeCluster([fake_machine("a", CPU=16)])
    return Federation(config, observers=observers, cluster=cluster, sites=sites)


def run_over(lab: Lab, sites: Sequence[str], *observers: Any, **keys: Any) -> RunResult:
    with over(lab, sites, *observers, **keys) as federation:
        return in_time(federation.run)


def digests_over(run: Path, after: int = ROUNDS) -> dict[int, str]:
    """By client, of its model after a round; each is at one site alone."""
    found: dict[int, str] = {}
    for file in (run / "journal").glob("*.clients.sqlite"):
        with closing(ClientStates(file)) as states:
            its = states.load(range(CLIENTS), after + 1)
        assert not found.keys() & its.keys()
        found |= {client: digest(state) for client, state in its.items()}
    assert sorted(found) == list(range(CLIENTS))
    return found


def doubles(tmp_path: Path) -> dict[str, Any]:
    """The keys of a run of unequal clients with samples of float64: two full batches a round."""
    random, sizes = np.random.default_rng(5), (40, 7, 25, 1, 13, 30, 4)
    ids = [f"c{client}" for client, size in enumerate(sizes) for _ in range(size)]
    x, y = random.normal(size=(sum(sizes), 4)), random.integers(0, 3, sum(sizes))
    np.savez(tmp_path / "doubles.npz", x=x, y=y, client_ids=np.array(ids))
    return {
        "federation__number_of_clients": None,
        "data__dataset_type": "npz",
        "data__options": {"path": str(tmp_path / "doubles.npz"), "dtype": "float64"},
        "data__data_distribution_kind": "natural",
        "data__dirichlet_beta": None,
        "data__test_fraction": 0.0,
        "evaluation__where": "sites",
        "training__batch_size": 64,
        "training__number_of_epochs": 2,
        "training__learning_rate": 0.5,
    }


def sites_of(run: Path) -> dict[str, int]:
    """How many clients each site has, as the journal says."""
    told = json.loads((run / "journal" / "client_sites.json").read_text())["sites"]
    return {site: sum(len(range(*each)) for each in share) for site, share in told.items()}


def digests_of(run: Path, rounds: int) -> dict[int, str]:
    """By client, of its model after so many rounds, at the site that the journal says."""
    told = json.loads((run / "journal" / "client_sites.json").read_text())["sites"]
    found: dict[int, str] = {}
    for site, share in told.items():
        with closing(ClientStates(run / "journal" / f"{site}.clients.sqlite")) as states:
            its = states.load(members(taken(share)).tolist(), rounds + 1)
        found |= {client: digest(state) for client, state in its.items()}
    return found


def bytes_of_replicas(run: Path) -> dict[tuple[int, str], int]:
    """By round and direction."""
    found: dict[tuple[int, str], int] = {}
    with (run / "traffic.csv").open() as file:
        for row in csv.DictReader(file):
            if row["purpose"] == "replica" and int(row["bytes"]):
                key = int(row["round"]), row["direction"]
                found[key] = found.get(key, 0) + int(row["bytes"])
    return found
