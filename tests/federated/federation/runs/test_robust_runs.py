"""Runs that keep every update: the same bits whoever works or dies, and hard to lead astray."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import ConfigError, Event, Federation, RunResult, WorkersExhausted
from fedpilot.federated.algorithms.coordinatewise import cut
from fedpilot.federated.core.state import Array, digest
from fedpilot.federated.engine import journal as journal_module
from fedpilot.federated.engine.tensor_files import read_tensors
from fedpilot.federated.prepare.costs import machine_memory
from fedpilot.federated.site.rounds.star_round import SiteRound
from pairings import paired
from pulling import goal, present, pulling_code, pulling_keys

CLIENTS, COHORT, ROUNDS = 12, 7, 3
TRIM = 0.2
CODE = """
import torch
from torch import nn

FAR = 1e20


class WithBatchNorm(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(input_shape[0], 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, num_classes)
        )
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.layers(x) * self.temperature


def _honest(client):
    optimizer = torch.optim.SGD(client.module.parameters(), lr=client.training.learning_rate)
    for x, y in client.batches():
        optimizer.zero_grad()
        client.loss(client.module(x), y).backward()
        optimizer.step()


def honest(client):
    _honest(client)


def huge(client):
    _honest(client)
    if client.id == "client_3":
        with torch.no_grad():
            for tensor in client.module.state_dict().values():
                tensor += FAR if tensor.is_floating_point() else 1


def not_a_number(client):
    _honest(client)
    if client.id == "client_3":
        with torch.no_grad():
            next(client.module.parameters()).fill_(float("nan"))
"""

STRATEGIES: dict[str, dict[str, Any]] = {
    "median": {"federation__aggregation_strategy": "median"},
    "trimmed_mean": {"federation__aggregation_strategy": "trimmed_mean", "federation__trim": TRIM},
    "krum": {"federation__aggregation_strategy": "krum", "federation__byzantine_clients": 2},
    "multi_krum": {
        "federation__aggregation_strategy": "multi_krum",
        "federation__byzantine_clients": 1,
        "federation__krum_keeps": 4,
    },
    "geometric_median": {"federation__aggregation_strategy": "geometric_median"},
}
BOTH = pytest.mark.parametrize("strategy", ["median", "trimmed_mean"])
EACH = pytest.mark.parametrize("strategy", STRATEGIES)


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("code")
    (folder / "robust_code_for_tests.py").write_text(CODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield "robust_code_for_tests"


class Lab:
    """Federations on fake clusters whose run folders lie in one place."""

    def __init__(self, runs: Path, undo: ExitStack) -> None:
        self.runs = runs
        self._undo = undo
        self.cluster = FakeCluster([fake_machine("a", CPU=8)])

    def federation(
        self,
        strategy: str,
        *observers: Callable[[Event], None],
        sites: tuple[str, ...] = ("local",),
        **keys: Any,
    ) -> Federation:
        config: dict[str, Any] = {
            "run": {"name": "test", "random_seed": 3},
            "federation": {
                "number_of_clients": CLIENTS, "clients_per_round": COHORT, "rounds": ROUNDS
            },
            "model": {"model_type": "logistic_regression"},
            "data": {
                "dataset_type": "synthetic",
                "options": {"samples": 400, "features": 6, "classes": 3},
            },
            "training": {"batch_size": 8, "learning_rate": 0.2, "execution": "sequential"},
            "resources": {"workers": 2},
            "participation": {},
            "outputs": {"folder": str(self.runs), "curves": False},
        }  # fmt: skip
        for key, value in ({**STRATEGIES.get(strategy, {}), **keys}).items():
            section, _, name = key.partition("__")
            config[section][name] = value
        self.cluster = FakeCluster([fake_machine("a", CPU=8)])
        made = Federation(config, observers=observers, cluster=self.cluster, sites=sites)
        self._undo.callback(made.close)
        return made

    def run(self, strategy: str, **keys: Any) -> RunResult:
        with self.federation(strategy, **keys) as federation:
            return federation.run()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as undo:
        yield Lab(tmp_path / "runs", undo)


def told(result: RunResult) -> list[dict[str, Any]]:
    """The metrics that must not depend on when and where."""
    names = ("round", "clients", "samples", "refused", "train_loss", "model", "accuracy", "loss")
    return [{name: row[name] for name in names} for row in result.rows]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, RunResult]:
    """Each strategy's run with one worker."""
    with ExitStack() as undo:
        lab = Lab(tmp_path_factory.mktemp("references"), undo)
        return {name: lab.run(name, resources__workers=1) for name in STRATEGIES}


@EACH
@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.soak), 3])
def test_however_many_workers_give_the_same_bits(
    strategy: str, workers: int, lab: Lab, references: Mapping[str, RunResult]
) -> None:
    result = lab.run(strategy, resources__workers=workers)
    assert result.digest == references[strategy].digest
    assert told(result) == told(references[strategy])


@pytest.mark.parametrize(("strategy", "workers"), paired(["median", "trimmed_mean"], ["1", "3"]))
@pytest.mark.parametrize("nth", [*(pytest.param(n, marks=pytest.mark.soak) for n in (1, 3)), 5])
def test_a_worker_that_dies_in_a_round_changes_nothing(
    strategy: str, workers: str, nth: int, lab: Lab, references: Mapping[str, RunResult]
) -> None:
    lost: list[Event] = []
    federation = lab.federation(strategy, lost.append, resources__workers=int(workers))
    lab.cluster.faults.kill_at("train", nth)
    result = federation.run()
    assert "worker_lost" in [event.name for event in lost]
    assert result.digest == references[strategy].digest
    assert told(result) == told(references[strategy])


def alone(costs: Any, *_: Any) -> list[Any]:
    """Every client is a piece of its own."""
    return list(np.argsort(-costs, kind="stable")[:, np.newaxis])


@pytest.mark.parametrize(
    ("strategy", "workers"), paired(["median", "trimmed_mean"], ["1", "2", "3"])
)
@pytest.mark.parametrize(
    "at", [("train", 5), pytest.param(("hand_up", 1), marks=pytest.mark.soak), ("hand_up", 3)]
)
def test_a_worker_that_dies_with_what_it_collected_changes_nothing(
    strategy: str,
    workers: str,
    at: tuple[str, int],
    lab: Lab,
    references: Mapping[str, RunResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedpilot.federated.site.rounds.star_round.pieces", alone)
    seen: list[Event] = []
    federation = lab.federation(strategy, seen.append, resources__workers=int(workers))
    lab.cluster.faults.kill_at(*at)
    result = federation.run()
    assert "worker_lost" in [event.name for event in seen]
    assert result.digest == references[strategy].digest
    assert told(result) == told(references[strategy])


@EACH
def test_several_sites_give_the_same_bits(
    strategy: str, lab: Lab, references: Mapping[str, RunResult]
) -> None:
    result = lab.federation(strategy, sites=("east", "west"), resources__workers=2).run()
    assert result.digest == references[strategy].digest
    assert told(result) == told(references[strategy])


@EACH
def test_a_round_that_was_interrupted_goes_on_from_its_journal(
    strategy: str,
    lab: Lab,
    references: Mapping[str, RunResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One worker, one client in a piece, each handed up: it dies after three of round 2."""
    make = SiteRound._piece
    handing_up = partialmethod(lambda self, *of, hand_up: make(self, *of, hand_up=True))
    monkeypatch.setattr(SiteRound, "_piece", handing_up)
    monkeypatch.setattr("fedpilot.federated.site.rounds.star_round.pieces", alone)
    monkeypatch.setattr(journal_module, "worth_saving", lambda *_args: True)
    keys = {"resources__workers": 1, "resources__worker_restarts": 0}
    federation = lab.federation(strategy, **keys)
    lab.cluster.faults.kill_at("train", COHORT + 4)
    with pytest.raises(WorkersExhausted):
        federation.run(run_id="r")
    federation.close()
    (journal,) = (lab.runs / "r").rglob("local.safetensors")
    header, tensors = read_tensors(journal)
    saved = len(tensors["done"])
    assert saved == len(header["partial"]["updates"]) == 3
    kept = {name: array for name, array in tensors.items() if name.startswith("all/")}
    assert len(kept) == 2
    assert {len(array) for array in kept.values()} == {saved}
    result = lab.federation(strategy, **keys).resume("r")
    assert result.digest == references[strategy].digest
    assert told(result) == told(references[strategy])


@BOTH
def test_a_round_is_what_its_clients_train_combined(strategy: str, code: str, lab: Lab) -> None:
    keys = {"model__model_type": f"{code}:WithBatchNorm", "federation__rounds": 1}
    with lab.federation(strategy, **keys) as federation:
        start = {name: array.copy() for name, array in federation.state.items()}
        trained = [federation[client_id].train() for client_id in federation.loaded.cohort(1)]
        federation.run()
        after = federation.state
    for name, old in start.items():
        states = np.stack([result.state[name] for result in trained])
        if old.dtype.kind != "f":
            assert after[name] == states.max(axis=0)
            continue
        moved = np.sort((states - old).astype(np.float64), axis=0)
        ends = cut(TRIM, COHORT)
        update = (
            np.median(moved, axis=0)
            if strategy == "median"
            else sum(moved[ends : COHORT - ends]) / (COHORT - 2 * ends)
        )
        assert np.array_equal(after[name], (old + update).astype(old.dtype)), name


@BOTH
def test_chunks_trained_together_are_kept_alike(
    strategy: str, lab: Lab, references: Mapping[str, RunResult]
) -> None:
    keys = {"training__execution": "folded"}
    results = [
        lab.run(strategy, resources__workers=workers, training__chunk_size=chunk, **keys)
        for workers, chunk in ((1, 7), (3, 2))
    ]
    assert told(results[0]) == told(results[1])
    assert results[0].digest == results[1].digest


def combined(strategy: str, updates: Array) -> Array:
    """What some updates (clients, numbers) become, as the papers have it."""
    clients = len(updates)
    if strategy == "geometric_median":
        point = updates.mean(axis=0)
        for _ in range(1_000):
            weights = 1 / np.linalg.norm(updates - point, axis=1)
            point = weights @ updates / weights.sum()
        return np.asarray(point)
    byzantine = 1 if clients > 2 + 2 else 0
    apart = np.linalg.norm(updates[:, np.newaxis] - updates, axis=2) ** 2
    scores = np.sort(apart, axis=1)[:, 1 : clients - byzantine - 1].sum(axis=1)
    kept = 1 if strategy == "krum" else clients - byzantine
    return np.asarray(updates[np.argsort(scores)[:kept]].mean(axis=0))


@pytest.mark.parametrize(
    ("strategy", "keys"),
    [
        ("krum", {"federation__byzantine_clients": 1}),
        ("multi_krum", {"federation__byzantine_clients": 1}),
        ("geometric_median", {}),
    ],
)
def test_three_rounds_are_those_of_the_paper(
    strategy: str, keys: dict[str, Any], tmp_path: Path, lab: Lab
) -> None:
    """With unequal clients, which count the same, and one that sends no numbers in round 2."""
    keys |= {"federation__aggregation_strategy": strategy}
    keys |= {"data__data_distribution_kind": "dirichlet", "data__dirichlet_beta": 1.0}
    with (
        pulling_code(tmp_path) as code,
        lab.federation("", **pulling_keys(code), **keys) as federation,
    ):
        x = federation.state["weight"].copy()
        result = federation.run()
        after = federation.state
    assert [row["refused"] for row in result.rows] == [0, 1, 0]
    seen = np.zeros(2)
    for number in range(1, ROUNDS + 1):
        moves = [(0.5 * (goal(i, x.shape) - x), [0.01 * i] * 2) for i in present(number)]
        update = combined(strategy, np.stack([np.append(w.reshape(-1), b) for w, b in moves]))
        x, seen = x + update[:-2].reshape(x.shape), seen + update[-2:]
    np.testing.assert_allclose(after["weight"], x, rtol=0, atol=1e-9)
    np.testing.assert_allclose(after["seen"], seen, rtol=0, atol=1e-9)


# -- clients that send anything ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "evil"),
    [
        *((name, "huge") for name in STRATEGIES),
        *(
            pytest.param(
                name, "not_a_number", marks=() if name in ("median", "krum") else pytest.mark.soak
            )
            for name in STRATEGIES
        ),
    ],
)
def test_a_client_that_sends_anything_hardly_moves_the_model(
    strategy: str, evil: str, code: str, lab: Lab
) -> None:
    keys = {
        "model__model_type": f"{code}:WithBatchNorm",
        "federation__clients_per_round": CLIENTS,  # the evil one is in every round
    }
    clean = lab.run(strategy, training__client_update=f"{code}:honest", **keys)
    with lab.federation(strategy, training__client_update=f"{code}:{evil}", **keys) as federation:
        start = {name: array.copy() for name, array in federation.state.items()}
        result = federation.run()
        after = dict(federation.state)
    refused = [row["refused"] for row in result.rows]
    assert refused == [1 if evil == "not_a_number" else 0] * ROUNDS
    assert result.rows[-1]["accuracy"] >= clean.rows[-1]["accuracy"] - 0.1
    for name, array in after.items():
        assert np.abs(array - start[name]).max() < (10 if array.dtype.kind == "f" else 1e3), name


def test_the_same_client_ruins_a_mean(code: str, lab: Lab) -> None:
    keys = {
        "federation__clients_per_round": CLIENTS,
        "federation__rounds": 1,
        "training__client_update": f"{code}:huge",
    }
    with lab.federation("fedavg", **keys) as federation:
        federation.run()
        assert max(float(np.abs(array).max()) for array in federation.state.values()) > 1e15


# -- refused before anything starts -----------------------------------------------------------


@BOTH
def test_what_memory_cannot_hold_is_refused(
    strategy: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = (6 * 3 + 3) * 4
    costs = "fedpilot.federated.prepare.costs.machine_memory"
    monkeypatch.setattr(costs, lambda: 4 * COHORT * each)
    assert lab.federation(strategy).loaded.bytes_of_updates == COHORT * each
    monkeypatch.setattr(costs, lambda: 4 * COHORT * each - 1)
    with pytest.raises(ConfigError) as caught:
        lab.federation(strategy)
    (problem,) = caught.value.problems
    assert problem.key == "federation.aggregation_strategy"
    assert "7 clients of 84 B are 588 B" in problem.found
    assert f"at most {COHORT - 1} clients per round" in problem.allowed
    assert lab.federation("fedavg").loaded.bytes_of_updates == 0


@pytest.mark.parametrize(
    ("keys", "key", "found"),
    [
        pytest.param({"federation__trim": 0.1}, "federation.trim", "`aggregation_strategy: fedavg`",
                     id="trim without the strategy"),
        pytest.param({"federation__aggregation_strategy": "trimmed_mean"}, "federation.trim",
                     "without `trim`", id="the strategy without trim"),
        pytest.param({"federation__aggregation_strategy": "trimmed_mean", "federation__trim": 0.1},
                     "federation.trim", "0.1 of 7 clients per round, which cuts off none",
                     id="nobody is cut off"),
        pytest.param({"federation__aggregation_strategy": "trimmed_mean", "federation__trim": 0.5},
                     "federation.trim", "the number 0.5", id="nobody is left"),
        pytest.param({"federation__aggregation_strategy": "krum"}, "federation.byzantine_clients",
                     "without `byzantine_clients`", id="krum without a number"),
        pytest.param({"federation__aggregation_strategy": "geometric_median",
                      "federation__byzantine_clients": 1}, "federation.byzantine_clients",
                     "`aggregation_strategy: geometric_median`", id="a number without krum"),
        pytest.param({"federation__aggregation_strategy": "krum",
                      "federation__byzantine_clients": 1, "federation__krum_keeps": 2},
                     "federation.krum_keeps", "`aggregation_strategy: krum`",
                     id="krum keeps one"),
        pytest.param({"federation__aggregation_strategy": "krum",
                      "federation__byzantine_clients": 3}, "federation.byzantine_clients",
                     "3 of the 7 clients that a round has at least; `krum` needs more than 2 x 3",
                     id="too many byzantine clients"),
        pytest.param({"federation__aggregation_strategy": "multi_krum",
                      "federation__byzantine_clients": 2, "participation__quorum": 0.8},
                     "federation.byzantine_clients", "2 of the 6 clients",
                     id="too many for the smallest round"),
        pytest.param({"federation__aggregation_strategy": "multi_krum",
                      "federation__byzantine_clients": 2, "federation__krum_keeps": 6},
                     "federation.krum_keeps", "6 of the 7 clients", id="keeping a byzantine one"),
    ],
)  # fmt: skip
def test_what_cannot_be_trimmed_or_chosen_is_refused(
    keys: dict[str, Any], key: str, found: str, lab: Lab
) -> None:
    with pytest.raises(ConfigError) as caught:
        lab.federation("", **keys)
    (problem,) = caught.value.problems
    assert problem.key == key
    assert found in problem.found


def test_the_memory_is_the_machines_or_what_its_control_group_allows(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    whole = machine_memory(limit)
    assert whole > 1 << 28
    for text, expected in (("max\n", whole), ("1000000\n", 1_000_000), (str(2**80), whole)):
        limit.write_text(text)
        assert machine_memory(limit) == expected


def test_the_journal_of_a_sum_has_no_updates(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a journal of an earlier version is read as before."""
    monkeypatch.setattr(journal_module, "worth_saving", lambda *_args: True)
    result = lab.run("fedavg", resources__workers=1)
    assert result.rows
    for journal in lab.runs.rglob("local.safetensors"):
        assert "updates" not in json.dumps(read_tensors(journal)[0])
    assert digest({}) != result.digest
