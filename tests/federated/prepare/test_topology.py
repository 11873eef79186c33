"""A site gets a graph that its config does not determine with the spec, and checks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpilot.federated.config.schema import RunConfig
from fedpilot.federated.core.population.partitions.disjoint import iid
from fedpilot.federated.core.population.partitions.partition import Partition
from fedpilot.federated.core.state import Array
from fedpilot.federated.errors import FederatedError
from fedpilot.federated.prepare.topology import (
    exchange_of,
    graph_of_spec,
    lasting_exchange_of,
    topology_at_site,
    topology_of,
)

CLIENTS = 6
RING = "\n".join(f"{client} {(client + 1) % CLIENTS} 0.25" for client in range(CLIENTS))


@pytest.fixture
def partition() -> Partition:
    return iid(np.zeros(12, dtype=np.int64), CLIENTS, 1)


def config(topology: str, strategy: str = "dpsgd", **graph: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "federation": {
                "number_of_clients": CLIENTS,
                "rounds": 1,
                "topology": topology,
                "aggregation_strategy": strategy,
            },
            "graph": graph,
            "model": {"model_type": "mlp"},
            "data": {"dataset_type": "digits"},
        }
    )


@pytest.fixture
def ring(tmp_path: Path) -> RunConfig:
    (tmp_path / "ring.edges").write_text(RING)
    return config("custom", file=str(tmp_path / "ring.edges"))


def test_a_graph_from_a_file_is_the_same_where_the_file_is_not(
    ring: RunConfig, partition: Partition, tmp_path: Path
) -> None:
    here = topology_of(ring, partition)
    told = graph_of_spec(ring, here)
    (tmp_path / "ring.edges").unlink()
    there = topology_at_site(ring, partition, told)
    assert here is not None
    assert there is not None
    assert there.of_round(1).digest == here.of_round(1).digest
    assert here.weights is not None
    assert there.weights is not None
    assert there.weights.tolist() == here.weights.tolist()


def test_a_random_graph_is_the_same_where_another_would_be_drawn(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = config("erdos_renyi", probability=0.5)
    here = topology_of(drawn, partition)
    told = graph_of_spec(drawn, here)
    monkeypatch.setattr("fedpilot.federated.core.topology.graphs._drawn", lambda seed: seed + 1)
    other, there = topology_of(drawn, partition), topology_at_site(drawn, partition, told)
    assert here is not None
    assert other is not None
    assert there is not None
    assert there.of_round(1).digest == here.of_round(1).digest != other.of_round(1).digest


@pytest.mark.parametrize("topology", ["ring", "torus", "matching"])
def test_what_the_config_determines_is_not_sent(topology: str, partition: Partition) -> None:
    named = config(topology)
    assert graph_of_spec(named, topology_of(named, partition)) == {}


def edges(*ends: tuple[int, int], **more: Array) -> dict[str, Array]:
    receivers, sources = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    return {"graph/receivers": receivers, "graph/sources": sources, **more}


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(edges((0, CLIENTS)), id="an edge to no client"),
        pytest.param(edges((0, -1)), id="a negative number"),
        pytest.param(edges((0, 1), (0, 1)), id="an edge twice"),
        pytest.param(edges((1, 1)), id="an edge to itself"),
        pytest.param({"graph/sources": np.array([1])}, id="no receivers"),
        pytest.param(
            edges((0, 1)) | {"graph/sources": np.array([1.0])}, id="numbers that are no places"
        ),
        pytest.param(edges((0, 1)) | {"graph/sources": np.array([1, 2])}, id="another length"),
        pytest.param(
            {name: array[None] for name, array in edges((0, 1)).items()}, id="another shape"
        ),
        pytest.param(edges((0, 1)) | {"graph/weights": np.ones(2)}, id="more weights than edges"),
    ],
)
def test_tensors_that_are_no_graph_are_refused(
    told: dict[str, Array], ring: RunConfig, partition: Partition
) -> None:
    with pytest.raises(FederatedError, match="a spec's graph"):
        topology_at_site(ring, partition, told)


@pytest.mark.parametrize(
    ("name", "directed", "ends"),
    [
        pytest.param(
            "ring",
            False,
            [(0, 1), (0, 5), (1, 2), (2, 3), (3, 4), (4, 5)],
            id="of neighbors, each gives to the other",
        ),
        pytest.param(
            "exponential",
            True,
            [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0)],
            id="on a directed graph each gives to the next",
        ),
    ],
)
def test_who_gives_to_whom_follows_from_the_graph(
    name: str, directed: bool, ends: list[tuple[int, int]], partition: Partition
) -> None:
    strategy = "push_sum" if directed else "dpsgd"
    graphs = topology_of(config(name, strategy), partition)
    assert graphs is not None
    exchange = exchange_of(graphs)
    assert exchange.is_directed == directed
    assert [tuple(pair) for pair in exchange.ends.tolist()] == ends


@pytest.mark.parametrize(
    ("name", "lasts"),
    [
        pytest.param("ring", True, id="a ring is the same in each round"),
        pytest.param("matching", False, id="a matching is drawn anew"),
    ],
)
def test_clients_are_assigned_by_what_they_exchange_in_every_round(
    name: str, lasts: bool, partition: Partition
) -> None:
    assert (
        lasting_exchange_of(config(name), topology_of(config(name), partition)) is not None
    ) == lasts
