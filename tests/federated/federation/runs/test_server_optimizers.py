"""Runs whose server has an optimizer: by the papers' formulas, and in the same bits by any way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federations import Lab, Log, by_groups, many_pieces, raising, timeless
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import ConfigError, Federation, RunResult
from fedpilot.federated.engine.tensor_files import read_tensors
from fedpilot.federated.errors import ModelNotFinite
from fedpilot.federated.federation.run_folder.folder import read_checkpoint
from fedpilot.federated.federation.verify import Replay
from pairings import paired
from pulling import CLIENTS, ROUNDS, goal, present, pulling_code, pulling_keys
from records import Archive, written_at_once

STRATEGIES: dict[str, dict[str, Any]] = {
    "fedavgm": {"aggregation_strategy": "fedavgm", "server_learning_rate": 0.7},
    "fedadam": {"aggregation_strategy": "fedadam", "server_betas": [0.8, 0.9]},
    "corrected": {"aggregation_strategy": "fedadam", "server_bias_correction": True},
    "fedyogi": {"aggregation_strategy": "fedyogi", "server_tau": 0.05},
    "fedadagrad": {"aggregation_strategy": "fedadagrad", "server_learning_rate": 0.2},
}
EACH = pytest.mark.parametrize("strategy", STRATEGIES)


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pulling_code(tmp_path_factory.mktemp("code")) as name:
        yield name


def keys_of(strategy: str, **keys: Any) -> dict[str, Any]:
    return {f"federation__{key}": value for key, value in STRATEGIES[strategy].items()} | keys


def pulling(code: str, strategy: str) -> dict[str, Any]:
    return keys_of(strategy, **pulling_keys(code))


def stepped(strategy: str, x: Any, m: Any, v: Any, update: Any, number: int) -> tuple[Any, ...]:
    """A round of the strategy, as its paper prints it."""
    match strategy:
        case "fedavgm":
            m = 0.9 * m + update
            return x + 0.7 * m, m, v
        case "fedadam":
            m, v = 0.8 * m + 0.2 * update, 0.9 * v + 0.1 * update**2
            return x + 0.1 * m / (np.sqrt(v) + 0.001), m, v
        case "corrected":
            m, v = 0.9 * m + 0.1 * update, 0.99 * v + 0.01 * update**2
            mean, square = m / (1 - 0.9**number), v / (1 - 0.99**number)
            return x + 0.1 * mean / (np.sqrt(square) + 0.001), m, v
        case "fedyogi":
            m = 0.9 * m + 0.1 * update
            v = v - 0.01 * update**2 * np.sign(v - update**2)
            return x + 0.1 * m / (np.sqrt(v) + 0.05), m, v
        case "fedadagrad":
            m, v = 0.9 * m + 0.1 * update, v + update**2
            return x + 0.2 * m / (np.sqrt(v) + 0.001), m, v
    raise AssertionError(strategy)


@EACH
def test_three_rounds_are_those_of_the_paper(strategy: str, code: str, lab: Lab) -> None:
    """With unequal clients, one of which sends no numbers in the second round."""
    with lab.federation(**pulling(code, strategy)) as federation:
        x = federation.state["weight"].copy()
        samples = [federation.loaded.samples_of(index) or 0 for index in range(CLIENTS)]
        result = federation.run()
        after = federation.state
    assert len(set(samples)) > 1
    assert [row["refused"] for row in result.rows] == [0, 1, 0]
    v = {"fedyogi": 0.05**2, "corrected": 0.0}.get(strategy, 0.001**2)
    m, seen = 0.0, 0.0
    for number in range(1, ROUNDS + 1):
        there = present(number)
        whole = sum(samples[i] for i in there)
        update = sum(samples[i] / whole * 0.5 * (goal(i, x.shape) - x) for i in there)
        seen += sum(samples[i] / whole * 0.01 * i for i in there)
        x, m, v = stepped(strategy, x, m, v, update, number)
    np.testing.assert_allclose(after["weight"], x, rtol=0, atol=1e-9)
    np.testing.assert_allclose(after["seen"], seen, rtol=0, atol=1e-9)


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, RunResult]]:
    """Each strategy's run with one worker."""
    with ExitStack() as undo:
        lab = Lab(tmp_path_factory.mktemp("references"), undo)
        yield {name: lab.run(**keys_of(name, resources__workers=1)) for name in STRATEGIES}


@pytest.mark.parametrize(("strategy", "workers"), paired(STRATEGIES, ["2", "3"]))
def test_workers_that_die_and_how_many_there_are_change_nothing(
    strategy: str,
    workers: str,
    lab: Lab,
    references: Mapping[str, RunResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many_pieces(monkeypatch)
    log = Log()
    federation = lab.federation(log, **keys_of(strategy, resources__workers=int(workers)))
    lab.cluster.faults.kill_at("train", 5)
    result = federation.run()
    assert log.of("worker_lost")
    assert result.digest == references[strategy].digest
    assert timeless(result.rows) == timeless(references[strategy].rows)


@EACH
def test_two_sites_give_the_bits_of_one(
    strategy: str, lab: Lab, references: Mapping[str, RunResult]
) -> None:
    cluster = FakeCluster([fake_machine("a", CPU=8)])
    config = lab.config(**keys_of(strategy))
    with Federation(config, cluster=cluster, sites=("east", "west")) as federation:
        assert federation.run().digest == references[strategy].digest


@pytest.mark.parametrize(("strategy", "at"), paired(STRATEGIES, ["2", "4"]))
def test_a_resumed_run_has_the_memory_of_its_checkpoint(
    strategy: str, at: str, lab: Lab, references: Mapping[str, RunResult]
) -> None:
    stop = raising(KeyboardInterrupt(), "round_started", int(at))
    with pytest.raises(KeyboardInterrupt):
        lab.federation(stop, **keys_of(strategy)).run(run_id="r")
    newest = max((lab.runs / "r" / "checkpoints").iterdir())
    kept = read_checkpoint(newest).memory
    moments = {"momentum"} if strategy == "fedavgm" else {"first_moment", "second_moment"}
    assert {name.partition("/")[0] for name in kept} - {"decays"} == moments
    assert ("decays" in kept) == (strategy == "corrected")
    assert {array.dtype.name for array in kept.values()} == {"float64"}
    result = lab.federation(**keys_of(strategy)).resume("r")
    assert result.digest == references[strategy].digest
    assert timeless(result.rows) == timeless(references[strategy].rows)


def test_groups_that_average_once_are_a_star_for_the_optimizer(lab: Lab) -> None:
    keys = keys_of("fedadam", federation__clients_per_round=None, federation__rounds=2)
    grouped = by_groups(count=3, steps=1)
    assert lab.run(**(keys | grouped)).digest == lab.run(**keys).digest


def test_a_run_with_a_memory_is_verified_from_its_start_and_from_a_checkpoint(
    archive: Archive,
) -> None:
    with written_at_once():
        archive.record("r", **keys_of("fedyogi"))
    for how, from_checkpoint in ((Replay.ALL, False), (Replay.LAST, True)):
        found = archive.verify("r", how=how)
        assert found.replayed is not None
        assert (found.failure, found.differs) == (None, False)
        assert (found.replayed.start > 0) == from_checkpoint


def test_a_memory_that_overflows_ends_the_run_by_name(code: str, lab: Lab) -> None:
    """Its square is infinite, so that the model would stand still without a word."""
    keys = pulling(code, "fedadam") | {
        "training__client_update": f"{code}:leaping",
        "model__options": {"size": 1e160},
    }
    with (
        lab.federation(**keys) as federation,
        pytest.raises(ModelNotFinite, match="second_moment/weight, in the server's memory"),
    ):
        federation.run(run_id="ended")
    header, _ = read_tensors(lab.runs / "ended" / "model.safetensors")
    assert header["round"] == 0, "the model before it is kept"


@pytest.mark.parametrize(
    ("keys", "key", "found", "allowed"),
    [
        pytest.param({"server_momentum": 0.5}, "server_momentum", "`aggregation_strategy: fedavg`",
                     "`aggregation_strategy: fedavgm`", id="momentum without the strategy"),
        pytest.param({"aggregation_strategy": "fedavgm", "server_tau": 0.1}, "server_tau",
                     "`aggregation_strategy: fedavgm`", "fedadam`, `fedyogi` or `fedadagrad`",
                     id="tau of another one"),
        pytest.param({"aggregation_strategy": "median", "server_betas": [0.9, 0.9]},
                     "server_betas", "`aggregation_strategy: median`", "`aggregation_strategy: ",
                     id="betas without an adaptive one"),
        pytest.param({"aggregation_strategy": "fedyogi", "server_bias_correction": False},
                     "server_bias_correction", "`aggregation_strategy: fedyogi`",
                     "`aggregation_strategy: fedadam`", id="no bias to correct, not even not"),
        pytest.param({"aggregation_strategy": "fedadam", "server_betas": [0.9]}, "server_betas",
                     "[0.9]", "a list of 2", id="one beta"),
        pytest.param({"aggregation_strategy": "fedadam", "server_betas": [0.9, 1.0]},
                     "server_betas[1]", "the number 1.0", "below 1", id="a beta of one"),
        pytest.param({"aggregation_strategy": "fedadagrad", "server_tau": 0.0}, "server_tau",
                     "the number 0.0", "above 0", id="tau of nothing"),
        pytest.param({"aggregation_strategy": "fedadm"}, "aggregation_strategy",
                     'the text "fedadm"', "fedadam", id="a strategy misspelt"),
    ],
)  # fmt: skip
def test_options_of_other_optimizers_and_impossible_ones_are_refused(
    keys: dict[str, Any], key: str, found: str, allowed: str, lab: Lab
) -> None:
    with pytest.raises(ConfigError) as caught:
        lab.federation(**{f"federation__{name}": value for name, value in keys.items()})
    (problem,) = caught.value.problems
    assert problem.key == f"federation.{key}"
    assert found in problem.found
    assert allowed in problem.allowed


def test_the_rate_that_the_strategy_brings_is_written_down(lab: Lab, tmp_path: Path) -> None:
    result = lab.run(federation__aggregation_strategy="fedadam", federation__rounds=1)
    assert "server_learning_rate: 0.1\n" in (result.folder / "config.yaml").read_text()
    result = lab.run(federation__rounds=1)
    assert "server_learning_rate: 1.0\n" in (result.folder / "config.yaml").read_text()
