"""Directed graphs, where nodes have weights that travel with their models; and mixing alone."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn.functional import cross_entropy

from federations import CLIENTS, Lab, Log, on_a_graph, raising, timeless
from fedpilot.federated.core.state import Array
from fedpilot.federated.core.topology.mixing import push_sum_step
from fedpilot.federated.errors import ConfigError
from graph_runs import NAMES, digests_over, doubles, nodes_of, over, run_over

UNITS = 2**16


def split_of(edges: list[tuple[int, int]], nodes: int) -> Array:
    """(nodes, nodes): of each column, the shares that a node gives to the others and keeps."""
    matrix = np.zeros((nodes, nodes))
    for source in range(nodes):
        receivers = {to for of, to in edges if of == source}
        share = UNITS // (1 + len(receivers)) / UNITS
        matrix[list(receivers), source] = share
        matrix[source, source] = 1 - share * len(receivers)
    return matrix


DIRECTED = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 0), (0, 3), (0, 5), (2, 6)]
"""A ring of seven with shortcuts: node 0 gives to three others."""


def in_a_file(folder: Path, edges: list[tuple[int, int]], nodes: int) -> str:
    rows = [[int((of, to) in edges) for to in range(nodes)] for of in range(nodes)]
    path = folder / "directed.csv"
    path.write_text("\n".join(",".join(map(str, row)) for row in rows))
    return str(path)


def edges_of(name: str, number: int) -> list[tuple[int, int]]:
    match name:
        case "custom":
            return DIRECTED
        case "exponential":
            return [(node, (node + 2 ** ((number - 1) % 3)) % 7) for node in range(7)]
        case _:
            return [(node, (node + step) % 7) for node in range(7) for step in (-1, 1)]


@pytest.mark.parametrize("name", ["custom", "exponential", "ring"])
def test_push_sum_trains_the_ratio_and_conserves_the_sum(
    name: str, lab: Lab, tmp_path: Path
) -> None:
    """As in Assran et al. 2019: x and w are pushed, and z = x / w is trained."""
    graph = {"graph__file": in_a_file(tmp_path, DIRECTED, 7)} if name == "custom" else {}
    keys = on_a_graph(name, "push_sum", **doubles(tmp_path), **graph, federation__rounds=5)
    with lab.federation(**keys) as federation:
        data, first = federation.loaded.inputs.data, federation.loaded.inputs.initial
        result = federation.run(run_id="r")
    shapes = [first["0.weight"].shape, first["0.bias"].shape]
    flat = np.concatenate([first["0.weight"].reshape(-1), first["0.bias"]])
    x, w = np.stack([flat] * 7), np.ones(7)
    for number in range(1, 6):
        for node in range(7):
            z = torch.tensor(x[node] / w[node])
            rows = data.partition.indices(node)
            for _ in range(2):
                z.requires_grad_(True)
                weight, bias = z[:-3].reshape(shapes[0]), z[-3:]
                outputs = torch.tensor(data.x[rows]) @ weight.T + bias
                cross_entropy(outputs, torch.tensor(data.y[rows])).backward()
                z = (z - 0.5 * z.grad).detach()
            x[node] += z.numpy() - x[node] / w[node]
        split = split_of(edges_of(name, number), 7)
        x, w = split @ x, split @ w
    nodes = nodes_of(lab.runs / "r", after=5, clients=7)
    found = np.concatenate([nodes["0.weight"].reshape(7, -1), nodes["0.bias"]], axis=1)
    assert np.abs(found - x / w[:, None]).max() < 1e-6
    weights = nodes["push_sum/weight"]
    assert weights.sum() == 7 * 2**26
    assert np.abs(weights / 2**26 - w).max() < 1e-6
    assert name != "custom" or np.ptp(w) > 0.5
    model = load_file(result.folder / "model.safetensors")
    assert np.abs(model["0.bias"] - (x / w[:, None])[:, -3:].mean(axis=0)).max() < 1e-6


def spectral_rate(matrix: Array) -> float:
    """How fast mixing forgets: the second largest size of an eigenvalue."""
    return float(np.sort(np.abs(np.linalg.eigvals(matrix)))[-2])


def test_gossip_trains_once_and_then_comes_together_at_the_spectral_rate(lab: Lab) -> None:
    keys = on_a_graph("ring", "gossip", federation__rounds=12, graph__mixing_steps=4)
    result = lab.run(**keys)
    first, *others = result.rows
    assert first["train_loss"] is not None
    assert {row["train_loss"] for row in others} == {None}
    third = UNITS // 3 / UNITS
    ring = np.eye(CLIENTS) * (1 - 2 * third)
    for node in range(CLIENTS):
        ring[node, [node - 1, (node + 1) % CLIENTS]] = third
    rate = spectral_rate(ring) ** 4
    apart = [row["consensus_distance"] for row in result.rows]
    for before, after in itertools.pairwise(apart[5:]):
        assert after / before == pytest.approx(rate, rel=0.05)


def test_gossip_conserves_the_mean_to_the_rounding_of_its_type(lab: Lab) -> None:
    stop = raising(KeyboardInterrupt(), "round_finished", round=1)
    keys = on_a_graph("ring", "gossip", federation__rounds=9, graph__mixing_steps=3)
    with pytest.raises(KeyboardInterrupt):
        lab.federation(stop, **keys).run(run_id="r")
    before = nodes_of(lab.runs / "r", after=1)
    after = nodes_of(lab.federation(**keys).resume("r").folder, after=9)
    for name, array in after.items():
        was, now = before[name].mean(axis=0, dtype=float), array.mean(axis=0, dtype=float)
        rounding = 9 * 3 * np.finfo(np.float32).eps * np.abs(before[name]).max()
        assert np.abs(now - was).max() < rounding


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("exponential", "push_sum"),
        pytest.param("custom", "push_sum", marks=pytest.mark.soak),
        pytest.param("tree", "push_sum", marks=pytest.mark.soak),
        ("ring", "gossip"),
        pytest.param("matching", "gossip", marks=pytest.mark.soak),
    ],
)
def test_workers_and_sites_and_a_resume_do_not_change_any_nodes_bits(
    name: str, strategy: str, lab: Lab, tmp_path: Path
) -> None:
    ring = [(node, (node + 1) % CLIENTS) for node in range(CLIENTS)]
    edges = [*ring, (0, 5), (0, 7), (3, 9)]
    graph = {"graph__file": in_a_file(tmp_path, edges, CLIENTS)} if name == "custom" else {}
    keys = {"name": name, "strategy": strategy, "graph__mixing_steps": 2, **graph}
    alone = run_over(lab, NAMES[:1], **keys)
    assert all(row["consensus_distance"] > 0 for row in alone.rows)
    for sites, workers in ((1, 4), (2, 1), (3, 2)):
        apart = run_over(lab, NAMES[:sites], **keys, resources__workers=workers)
        assert apart.digest == alone.digest
        assert digests_over(apart.folder) == digests_over(alone.folder)
        assert timeless(apart.rows) == timeless(alone.rows)
    stop = raising(KeyboardInterrupt(), "round_finished", round=2)
    with over(lab, NAMES[:2], stop, **keys) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    with over(lab, NAMES[:2], **keys) as federation:
        resumed = federation.resume("r")
    assert digests_over(resumed.folder) == digests_over(alone.folder)


def test_a_client_that_diverges_keeps_its_weight_and_the_sum_stays(
    lab: Lab, user_code: str
) -> None:
    log, model = Log(), {"model__model_type": f"{user_code}:Explosive"}
    more = {"model__options": {"limit": 2.6}, "federation__rounds": 2}
    with lab.federation(log, **on_a_graph("exponential", "push_sum", **model, **more)) as run:
        result = run.run()
    assert 0 < len({each["client"] for each in log.of("update_refused")}) < CLIENTS
    nodes = nodes_of(result.folder, after=2)
    assert nodes["push_sum/weight"].sum() == CLIENTS * 2**26
    assert all(np.isfinite(array).all() for array in nodes.values())


@pytest.mark.parametrize(
    ("edges", "keys", "key", "said"),
    [
        ("0,1,0\n0,0,1\n1,0,0", {"strategy": "dpsgd"}, "graph.file", "the graph is directed"),
        ("0,1,0\n1,0,1\n0,0,0", {}, "graph.file", "in 2 parts that never meet: client_0, client_1"),
        ("0,1,0\n0,0,1\n1,0,0", {"graph__weights": "own"}, "graph.weights", "gives all"),
        ("0,.7,.6\n0,0,1\n1,0,0", {"graph__weights": "own"}, "graph.weights", "client_0 gives"),
        (
            "\n".join(
                ",".join(str(int(to in (0, of + 1))) for to in range(30)) for of in range(30)
            ),
            {"federation__number_of_clients": 30},
            "graph.file",
            "the push-sum weight of client_29 becomes",
        ),
    ],
)
def test_a_directed_graph_that_cannot_be_is_refused(
    edges: str, keys: dict[str, Any], key: str, said: str, lab: Lab, tmp_path: Path
) -> None:
    (tmp_path / "g.csv").write_text(edges)
    keys = {"strategy": "push_sum", "federation__number_of_clients": 3, **keys}
    with pytest.raises(ConfigError) as refused:
        lab.federation(**on_a_graph("custom", graph__file=str(tmp_path / "g.csv"), **keys))
    (problem,) = refused.value.problems
    assert problem.key == key
    assert said in problem.found


@pytest.mark.parametrize(
    ("keys", "key", "said"),
    [
        ({"name": "exponential"}, "federation.aggregation_strategy", "which is directed"),
        ({"strategy": "push_sum", "graph__weights": "metropolis"}, "graph.weights", "`uniform`"),
        ({"graph__weights": "uniform"}, "graph.weights", "`metropolis`"),
    ],
)
def test_what_does_not_go_together_is_refused(
    keys: dict[str, Any], key: str, said: str, lab: Lab
) -> None:
    with pytest.raises(ConfigError) as refused:
        lab.federation(**on_a_graph(**keys))
    (problem,) = refused.value.problems
    assert problem.key == key
    assert said in f"{problem.found} {problem.allowed}"


def test_running_statistics_are_not_steps(
    lab: Lab, user_code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moved as far as steps, a variance could fall below 0. Biases and weights of 8 are trained."""
    moved: list[tuple[int, ...]] = []

    def step(before: Array, after: Array, weights: Array) -> Array:
        moved.append(after.shape[1:])
        return push_sum_step(before, after, weights)

    monkeypatch.setattr("fedpilot.federated.site.workers.node.push_sum_step", step)
    model = {"model__model_type": f"{user_code}:WithBatchNorm", "federation__rounds": 2}
    result = lab.run(**on_a_graph("tree", "push_sum", **model, graph__branching=6))
    nodes = nodes_of(result.folder, after=2)
    assert (nodes["push_sum/weight"] < 2**26).any()
    of_eight = [name for name, array in nodes.items() if array.shape[1:] == (8,)]
    assert len(of_eight) == 5
    first = next(shape for shape in moved if len(shape) == 2)
    assert moved.count((8,)) == 3 * moved.count(first)
