"""A federation on a graph: clients with models of their own, which mix with their neighbors'."""

from __future__ import annotations

import errno
import gc
import itertools
import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn.functional import cross_entropy

from calm_runs import CalmRuns
from federations import (
    CLIENTS,
    ROUNDS,
    Lab,
    Log,
    computed,
    many_pieces,
    on_a_graph,
    raising,
    timeless,
)
from fedpilot.federated.core.state import Array
from fedpilot.federated.core.topology.graphs import GraphOptions, TopologyName, topology
from fedpilot.federated.core.topology.mixing import metropolis
from fedpilot.federated.errors import ConfigError, FederatedError, NoUsableUpdate, RunRefused
from fedpilot.federated.federation.verify import Replay
from fedpilot.federated.site.rounds.graph_mixing import GraphMixing
from fedpilot.federated.site.rounds.graph_round import GraphRound
from graph_runs import digests, doubles, nodes_of
from mixings import dense
from records import Archive

# -- what is learned -----------------------------------------------------------------------------


def dense_of(name: str, nodes: int, number: int, **options: Any) -> Array:
    graphs = topology(TopologyName(name), nodes, GraphOptions(**options), 3)
    return dense(metropolis(graphs.of_round(number)))


@pytest.mark.parametrize(
    ("name", "options", "steps"),
    [
        ("ring", {}, 0),
        pytest.param("k_connected", {"degree": 4}, 0, marks=pytest.mark.soak),
        ("tree", {"branching": 3}, 0),
        ("matching", {}, 0),
        pytest.param("ring", {}, 3, id="gossip on a ring"),
        pytest.param("tree", {"branching": 3}, 2, id="gossip on a tree", marks=pytest.mark.soak),
    ],
)
def test_nodes_take_local_steps_and_then_their_neighbors_weighted_mean(
    name: str, options: dict[str, Any], steps: int, lab: Lab, tmp_path: Path
) -> None:
    """With dpsgd in each round; with gossip they train once, and mix `steps` times a round."""
    graph = {f"graph__{key}": value for key, value in options.items()}
    if steps:
        graph["graph__mixing_steps"] = steps
    strategy = "gossip" if steps else "dpsgd"
    keys = on_a_graph(name, strategy, **doubles(tmp_path), **graph, federation__rounds=5)
    with lab.federation(**keys) as federation:
        data = federation.loaded.inputs.data
        first = federation.loaded.inputs.initial
        result = federation.run(run_id="r")
    count = data.partition.number_of_clients
    w, b = (
        torch.tensor(np.stack([first[key]] * count), requires_grad=True)
        for key in ("0.weight", "0.bias")
    )
    for number in range(1, 6):
        for client in range(count if number == 1 or not steps else 0):
            rows = data.partition.indices(client)
            x, y = torch.tensor(data.x[rows]), torch.tensor(data.y[rows])
            for _ in range(2):
                loss = cross_entropy(x @ w[client].T + b[client], y)
                slopes = torch.autograd.grad(loss, (w, b))
                with torch.no_grad():
                    w -= 0.5 * slopes[0]
                    b -= 0.5 * slopes[1]
        mixing = torch.tensor(dense_of(name, count, number, **options))
        with torch.no_grad():
            for _ in range(steps or 1):
                w[...] = (mixing @ w.reshape(count, -1)).reshape(w.shape)
                b[...] = mixing @ b
    nodes = nodes_of(lab.runs / "r", after=5, clients=count)
    assert np.abs(nodes["0.weight"] - w.detach().numpy()).max() < 1e-6
    assert np.abs(nodes["0.bias"] - b.detach().numpy()).max() < 1e-6
    mean = w.detach().numpy().mean(axis=0)
    model = load_file(result.folder / "model.safetensors")
    assert np.abs(model["0.weight"] - mean).max() < 1e-6
    assert name == "matching" or len(set(digests(nodes))) == count
    far = [nodes[key].reshape(count, -1) - model[key].reshape(-1) for key in nodes]
    distance = np.sqrt((np.concatenate(far, axis=1) ** 2).sum(axis=1).mean())
    assert result.rows[-1]["consensus_distance"] == pytest.approx(distance, rel=1e-6)


RING_OF_12 = "\n".join(f"{client} {(client + 1) % CLIENTS}" for client in range(CLIENTS))


def test_a_graph_from_a_file_is_that_graph(lab: Lab, calm: CalmRuns, tmp_path: Path) -> None:
    (tmp_path / "ring.edges").write_text(RING_OF_12)
    custom = lab.run(**on_a_graph("custom", graph__file=str(tmp_path / "ring.edges")))
    assert custom.digest == calm.run(**on_a_graph()).digest


def test_a_graphs_own_weights_decide(lab: Lab, calm: CalmRuns, tmp_path: Path) -> None:
    """A third of each of two neighbors is what Metropolis and Hastings say; a quarter is less."""
    for name, weight in (("third", 1 / 3), ("quarter", 0.25)):
        lines = [f"{line} {weight}" for line in RING_OF_12.splitlines()]
        (tmp_path / f"{name}.edges").write_text("\n".join(lines))
    third, quarter = (
        lab.run(
            **on_a_graph("custom", graph__file=str(tmp_path / f"{name}.edges")),
            graph__weights="own",
        )
        for name in ("third", "quarter")
    )
    assert third.digest == calm.run(**on_a_graph()).digest
    assert quarter.digest != third.digest


def test_a_file_that_has_changed_since_is_refused(lab: Lab, tmp_path: Path) -> None:
    keys = on_a_graph("custom", graph__file=str(tmp_path / "ring.edges"))
    (tmp_path / "ring.edges").write_text(RING_OF_12)
    stop = raising(KeyboardInterrupt(), "round_finished", round=1)
    with pytest.raises(KeyboardInterrupt):
        lab.federation(stop, **keys).run(run_id="r")
    (tmp_path / "ring.edges").write_text(f"{RING_OF_12}\n0 2")
    with pytest.raises(RunRefused):
        lab.federation(**keys).resume("r")


@pytest.mark.parametrize(
    ("text", "weights", "key", "said"),
    [
        ("0 1\n2 3\n", "metropolis", "graph.file", "in 10 parts that never meet"),
        ("0 1\n1 77\n", "metropolis", "graph.file", "line 2: no client is called '77'"),
        (RING_OF_12, "own", "graph.weights", "the weights of the neighbors of"),
    ],
)
def test_a_file_that_is_no_graph_of_the_clients_is_refused(
    text: str, weights: str, key: str, said: str, lab: Lab, tmp_path: Path
) -> None:
    (tmp_path / "g.edges").write_text(text)
    keys = on_a_graph("custom", graph__file=str(tmp_path / "g.edges"), graph__weights=weights)
    with pytest.raises(ConfigError) as refused:
        lab.federation(**keys)
    (problem,) = refused.value.problems
    assert problem.key == key
    assert said in problem.found


# -- the same bits -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "workers", "pieces"),
    [
        *(("ring", 4, "many"), ("matching", 2, "as they are")),
        *(
            pytest.param(name, workers, pieces, marks=pytest.mark.soak)
            for name, workers, pieces in itertools.product(
                ("ring", "matching"), (2, 4), ("as they are", "many")
            )
            if (name, workers, pieces) not in (("ring", 4, "many"), ("matching", 2, "as they are"))
        ),
    ],
)
def test_however_many_workers_give_the_same_bits(
    name: str, workers: int, pieces: str, lab: Lab, calm: CalmRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = calm.run(**on_a_graph(name, resources__workers=1))
    if pieces == "many":
        many_pieces(monkeypatch)
    result = lab.run(**on_a_graph(name, resources__workers=workers))
    assert result.digest == alone.digest
    assert timeless(result.rows) == timeless(alone.rows)
    assert digests(nodes_of(result.folder)) == digests(nodes_of(alone.folder))


@pytest.mark.parametrize(
    "execution",
    [
        *("folded", "compiled"),
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("sequential", "mapped")),
    ],
)
def test_whichever_way_a_chunk_is_computed_the_bits_do_not_depend_on_who_does(
    execution: str, lab: Lab
) -> None:
    keys = on_a_graph(**{**computed(execution), "federation__clients_per_round": None})
    one, two = (lab.run(**keys, resources__workers=workers) for workers in (1, 2))
    assert one.digest == two.digest
    assert one.rows[-1]["train_loss"] < one.rows[0]["train_loss"]


def test_workers_on_other_machines_give_the_same_bits(
    lab: Lab, calm: CalmRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share no memory with the site: models go to them and come back in messages."""
    here = calm.run(**on_a_graph())
    monkeypatch.setattr("fedpilot.federated.site.workers.node.sharers", lambda: "elsewhere")
    there = lab.run(**on_a_graph())
    assert there.digest == here.digest
    assert digests(nodes_of(there.folder)) == digests(nodes_of(here.folder))


def test_a_worker_that_dies_changes_nothing(lab: Lab, calm: CalmRuns) -> None:
    alone = calm.run(**on_a_graph())
    log = Log()
    federation = lab.federation(log, **on_a_graph())
    lab.cluster.faults.kill_at("train_nodes", 3)
    result = federation.run()
    assert len(log.of("worker_lost")) == 1
    assert result.digest == alone.digest
    assert digests(nodes_of(result.folder)) == digests(nodes_of(alone.folder))


@pytest.mark.parametrize(
    ("done", "every"),
    [
        *((2, 1), (3, 2), (3, 9)),
        *(pytest.param(*each, marks=pytest.mark.soak) for each in ((1, 1), (3, 1), (1, 2))),
    ],
)
def test_a_run_that_was_interrupted_ends_in_the_same_bits(
    done: int, every: int, lab: Lab, calm: CalmRuns
) -> None:
    alone, keys = calm.run(**on_a_graph()), on_a_graph(outputs__checkpoint_every=every)
    stop = raising(KeyboardInterrupt(), "round_finished", round=done)
    with pytest.raises(KeyboardInterrupt):
        lab.federation(stop, **keys).run(run_id="r")
    resumed = lab.federation(**keys, resources__workers=3).resume("r")
    assert resumed.digest == alone.digest
    assert timeless(resumed.rows) == timeless(alone.rows)
    assert digests(nodes_of(resumed.folder)) == digests(nodes_of(alone.folder))


def test_models_of_rounds_to_which_no_run_goes_back_are_dropped(lab: Lab) -> None:
    run = lab.run(**on_a_graph(federation__rounds=9, outputs__checkpoint_every=4)).folder
    kept = []
    for after in range(1, 10):
        with suppress(RunRefused):
            nodes_of(run, after)
            kept.append(after)
    assert kept == [4, 8, 9]


@pytest.mark.parametrize(
    ("name", "execution"),
    [
        ("Unused", "sequential"),
        pytest.param("Unused", "folded", marks=pytest.mark.soak),
        ("Unused", "auto"),
        pytest.param("Shifted", "sequential", marks=pytest.mark.soak),
        ("Shifted", "folded"),
        pytest.param("Shifted", "mapped", marks=pytest.mark.soak),
        ("WithScalar", "mapped"),
        ("WithBatchNorm", "sequential"),
    ],
)
def test_tensors_that_do_not_move_are_the_models(
    name: str, execution: str, lab: Lab, user_code: str
) -> None:
    keys = on_a_graph(model__model_type=f"{user_code}:{name}", training__execution=execution)
    with lab.federation(**keys) as federation:
        first = federation.loaded.inputs.initial
        run = federation.run()
    nodes, model = nodes_of(run.folder), load_file(run.folder / "model.safetensors")
    for key, array in nodes.items():
        if key in ("spare", "table"):
            assert (array == first[key]).all()
            assert (model[key] == first[key]).all()
        elif array.dtype.kind == "f":
            assert array.mean(axis=0) == pytest.approx(model[key], rel=1e-5, abs=1e-6)


# -- trouble -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "key", "said"),
    [
        ({"federation__aggregation_strategy": "fedavg"}, "federation.aggregation_strategy", "ring"),
        ({"federation__topology": "star"}, "federation.aggregation_strategy", "`dpsgd`"),
        ({"federation__clients_per_round": 5}, "federation.clients_per_round", "all clients"),
        ({"federation__server_learning_rate": 0.5}, "federation.server_learning_rate", "no server"),
        ({"participation__deadline_s": 5.0}, "participation.deadline_s", "all clients"),
        (
            {
                "federation__topology": "exponential",
                "federation__aggregation_strategy": "push_sum",
                "participation__quorum": 0.5,
            },
            "participation.quorum",
            "lose all its weight",
        ),
        (
            {"graph__adapt": "similar", "traffic__run_bytes": "1GB"},
            "traffic.run_bytes",
            "with `graph.adapt`",
        ),
        ({"participation__over_sampling": 0.5}, "participation.over_sampling", "all clients"),
        ({"training__client_update": "mine:update"}, "training.client_update", "keep models"),
        ({"federation__topology": "k_connected"}, "graph.degree", "without `degree`"),
        ({"federation__topology": "custom"}, "graph.file", "without `file`"),
        ({"graph__weights": "own"}, "graph.weights", "`topology: ring`"),
        ({"graph__degree": 4}, "graph.degree", "`topology: ring` with `degree`"),
        ({"federation__topology": "torus", "graph__rows": 5}, "graph.rows", "2, 3, 4, 6"),
        ({"federation__topology": "k_connected", "graph__degree": 3}, "graph.degree", "even"),
        (
            {"federation__topology": "erdos_renyi", "graph__probability": 0.01},
            "federation.topology",
            "parts that never meet",
        ),
    ],
)
def test_a_graph_that_cannot_be_is_refused_before_anything_starts(
    keys: dict[str, Any], key: str, said: str, lab: Lab
) -> None:
    with pytest.raises(ConfigError) as refused:
        lab.federation(**{**on_a_graph(), **keys})
    (problem,) = refused.value.problems
    assert problem.key == key
    assert said in f"{problem.found} {problem.allowed}"


def test_a_training_that_diverges_is_said_to(lab: Lab) -> None:
    with pytest.raises(FederatedError, match="the training diverged"):
        lab.run(**on_a_graph(training__learning_rate=1e30))


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({"outputs__client_digests": True}, id="a ring"),
        pytest.param(
            {"name": "complete", "graph__mixing_steps": 2},
            id="more steps, all neighbors",
            marks=pytest.mark.soak,
        ),
        pytest.param({"name": "exponential", "strategy": "push_sum"}, id="weights beside models"),
        pytest.param({"strategy": "gossip"}, id="rounds without training", marks=pytest.mark.soak),
        pytest.param({"model__model_type": "{code}:Half"}, id="numbers of half precision"),
        pytest.param(
            {"model__model_type": "{code}:Explosive", "model__options": {"limit": 2.6}},
            id="clients that diverge",
        ),
        pytest.param(
            {"model__model_type": "{code}:WithBatchNorm"}, id="counters", marks=pytest.mark.soak
        ),
    ],
)
def test_models_that_are_spilled_have_the_same_bits(
    keys: dict[str, Any], lab: Lab, user_code: str
) -> None:
    keys = on_a_graph(**keys)
    if "model__model_type" in keys:
        keys["model__model_type"] = keys["model__model_type"].format(code=user_code)
    within, beyond = lab.run(**keys), lab.run(**keys, resources__store_bytes="2000")
    assert beyond.digest == within.digest
    assert digests(nodes_of(beyond.folder)) == digests(nodes_of(within.folder))
    assert timeless(beyond.rows) == timeless(within.rows)


def test_spilled_models_continue_a_run_and_leave_no_file(lab: Lab, calm: CalmRuns) -> None:
    keys = on_a_graph(resources__store_bytes="2000")
    stop = raising(KeyboardInterrupt(), "round_finished", round=2)
    with pytest.raises(KeyboardInterrupt):
        lab.federation(stop, **keys).run(run_id="r")
    resumed = lab.federation(**keys).resume("r")
    assert resumed.digest == calm.run(**on_a_graph()).digest
    assert {each.name.partition(".")[2] for each in (resumed.folder / "journal").iterdir()} <= {
        "clients.sqlite",
        "clients.sqlite-rows",
        "clients.sqlite-journal",
        "json",
    }


def test_a_disk_without_room_for_spilled_models_is_refused_before_the_start(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(free=2000)
    monkeypatch.setattr("fedpilot.federated.prepare.costs.disk_usage", lambda _: usage)
    lab.run(**on_a_graph())
    with (
        pytest.raises(ConfigError, match=r"(?s)outputs\.folder.*of 12 clients exceed the 1 KB"),
        lab.federation(**on_a_graph(resources__store_bytes="1000")) as federation,
    ):
        federation.run()


def test_a_disk_that_fills_up_ends_the_run_with_the_reason(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(FederatedError, match=r"resources\.store_bytes.*No space left"):
        lab.run(**on_a_graph(resources__store_bytes="1000"))


def test_a_client_whose_training_diverges_is_named_and_done_without(
    lab: Lab, user_code: str
) -> None:
    log, model = Log(), {"model__model_type": f"{user_code}:Explosive"}
    keys = on_a_graph(**model, model__options={"limit": 2.6}, federation__rounds=2)
    with lab.federation(log, **keys) as federation:
        result = federation.run()
    refused = {each["client"] for each in log.of("update_refused")}
    assert 0 < len(refused) < CLIENTS
    assert {row["clients"] + row["refused"] for row in result.rows} == {CLIENTS}
    nodes = nodes_of(result.folder, after=2)
    assert all(np.isfinite(array).all() for array in nodes.values())


def test_numbers_of_half_precision_are_mixed_too(lab: Lab, user_code: str) -> None:
    one, two = (
        lab.run(**on_a_graph(model__model_type=f"{user_code}:Half", resources__workers=workers))
        for workers in (1, 2)
    )
    assert one.digest == two.digest
    assert nodes_of(one.folder)["scale"].dtype == np.float16


def test_a_round_that_is_over_holds_no_models(lab: Lab) -> None:
    with lab.federation(**on_a_graph()) as federation:
        federation.run()
        rounds = [each for each in gc.get_objects() if type(each) is GraphRound]
        assert rounds
        assert not any(each._became or each._own or each._calls for each in rounds)
        mixings = [each for each in gc.get_objects() if type(each) is GraphMixing]
        assert not any(hasattr(each, "_models") for each in mixings)


def test_a_random_graph_is_part_of_a_runs_identity(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another library version may draw another one: such a run is not resumed."""
    keys = on_a_graph("erdos_renyi", graph__probability=0.6)
    stop = raising(KeyboardInterrupt(), "round_finished", round=1)
    with pytest.raises(KeyboardInterrupt):
        lab.federation(stop, **keys).run(run_id="r")
    monkeypatch.setattr("fedpilot.federated.core.topology.graphs._drawn", lambda seed: seed + 1)
    with pytest.raises(RunRefused):
        lab.federation(**keys).resume("r")


def test_a_round_without_any_finite_client_ends_the_run(lab: Lab, user_code: str) -> None:
    keys = on_a_graph(model__model_type=f"{user_code}:Explosive", model__options={"limit": -1e9})
    with pytest.raises(NoUsableUpdate), lab.federation(**keys) as federation:
        federation.run()


def test_the_client_of_a_graph_that_differs_is_not_looked_for_one_by_one(
    archive: Archive,
) -> None:
    """Trained alone from the mean, all clients would differ."""
    archive.record("r", **on_a_graph(outputs__client_digests=True))
    path = archive.runs / "r" / "metrics.jsonl"
    rows = [json.loads(line) for line in path.open()]
    rows[2]["model"] = "0" * 64
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = archive.verify("r", how=Replay.ALL)
    assert found.replayed is not None
    assert found.replayed.departure is not None
    assert found.replayed.departure.clients is None


@pytest.mark.parametrize("how", [Replay.ALL, Replay.LAST])
def test_it_is_verified_by_training_it_again(how: Replay, archive: Archive) -> None:
    archive.record("r", **on_a_graph())
    found = archive.verify("r", how=how)
    assert found.failure is None
    assert not found.differs


def test_every_clients_model_has_a_digest_if_asked_for(lab: Lab) -> None:
    result = lab.run(**on_a_graph(outputs__client_digests=True))
    lines = [json.loads(line) for line in (result.folder / "clients.jsonl").open()]
    last = [tuple(line["tensors"].items()) for line in lines if line["round"] == ROUNDS]
    assert len(lines) == CLIENTS * ROUNDS
    assert len(set(last)) == len(set(digests(nodes_of(result.folder)))) == CLIENTS
