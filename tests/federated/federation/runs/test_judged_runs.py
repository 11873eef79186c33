"""A run is judged where its config says, keeps its best model and ends when it is good enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from federations import CLIENTS, COHORT, ROUNDS, SEED, Lab, raising, timeless
from fedpilot.federated import Federation
from fedpilot.federated.core.population.sampling import cohort, evaluation_cohort
from fedpilot.federated.core.state import digest
from fedpilot.federated.engine.tensor_files import read_tensors


def test_early_stopping_ends_the_run_and_says_why(lab: Lab) -> None:
    result = lab.run(
        federation__rounds=30,
        evaluation__early_stopping={"patience": 2, "min_delta": 0.5},
    )
    assert result.rounds == 3
    assert "did not improve" in result.reason


def test_a_target_ends_the_run(lab: Lab) -> None:
    result = lab.run(federation__rounds=30, evaluation__early_stopping={"target": 0.0})
    assert result.rounds == 1
    assert "target" in result.reason


def test_early_stopping_that_was_interrupted_stops_in_the_same_round(lab: Lab) -> None:
    keys = {
        "federation__rounds": 30,
        "evaluation__early_stopping": {"patience": 3, "min_delta": 0.3},
        "evaluation__metric": "loss",
    }
    whole = lab.run(**keys)
    stop = raising(KeyboardInterrupt(), "round_finished", round=whole.rounds - 1)
    with lab.federation(stop, **keys) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    result = lab.federation(**keys).resume("r")
    assert (result.rounds, result.digest, result.reason) == (
        whole.rounds, whole.digest, whole.reason
    )  # fmt: skip
    assert (result.best_round, result.best) == (whole.best_round, whole.best)


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_the_best_model_is_that_of_the_best_round(metric: str, lab: Lab) -> None:
    result = lab.run(evaluation__metric=metric, training__learning_rate=3.0, federation__rounds=6)
    values = [row[metric] for row in result.rows]
    best = max(values) if metric == "accuracy" else min(values)
    assert result.best == best
    assert result.best_round == 1 + values.index(best)
    header, tensors = read_tensors(result.folder / "best.safetensors")
    assert header["round"] == result.best_round
    assert digest(tensors) == result.rows[result.best_round - 1]["model"]
    header, tensors = read_tensors(result.folder / "model.safetensors")
    assert (header["round"], digest(tensors)) == (6, result.digest)


def judged(federation: Federation, clients: list[str]) -> tuple[int, int, float]:
    """Samples, right answers and mean loss of the global model on these clients."""
    data = federation.loaded.inputs.data
    rows = np.concatenate(
        [data.partition.indices(data.partition.index_of(client)) for client in clients]
    )
    with torch.no_grad():
        outputs = federation.module().eval()(torch.from_numpy(data.x[rows]))
        labels = torch.from_numpy(data.y[rows])
        loss = float(torch.nn.functional.cross_entropy(outputs, labels))
    return len(rows), int((outputs.argmax(1) == labels).sum()), loss


@pytest.mark.parametrize(
    "evaluation",
    [
        pytest.param({"where": "sites"}, id="by the round's cohort"),
        pytest.param({"where": "sites", "clients": "all"}, id="by everybody"),
        pytest.param(
            {"where": "sites", "clients": "fraction", "fraction": 0.25}, id="by a quarter"
        ),
    ],
)
def test_models_are_judged_at_the_sites(evaluation: dict[str, Any], lab: Lab) -> None:
    keys = {f"evaluation__{key}": value for key, value in evaluation.items()}
    with lab.federation(**keys, data__test_fraction=0.0) as federation:
        result = federation.run()
        everybody = list(federation)
        if evaluation.get("clients") == "all":
            judges = everybody
        elif "clients" not in evaluation:
            chosen = cohort(CLIENTS, COHORT, SEED, ROUNDS)
            judges = [federation.client_id(int(index)) for index in chosen]
        else:
            chosen = evaluation_cohort(CLIENTS, 3, SEED, ROUNDS)
            judges = [federation.client_id(int(index)) for index in chosen]
        samples, correct, loss = judged(federation, judges)
    assert result.accuracy == correct / samples
    assert result.rows[-1]["loss"] == pytest.approx(loss, rel=1e-5)
    other = lab.run(**keys, data__test_fraction=0.0, resources__workers=4)
    assert timeless(other.rows) == timeless(result.rows)


def test_models_are_judged_on_the_test_set_of_the_coordinator(lab: Lab) -> None:
    with lab.federation(evaluation__batch_size=7) as federation:
        result = federation.run()
        data = federation.loaded.inputs.data
        with torch.no_grad():
            outputs = federation.module().eval()(torch.from_numpy(np.array(data.test_x)))
    right = int((outputs.argmax(1).numpy() == data.test_y).sum())
    assert result.accuracy == right / len(data.test_y)


def test_the_last_round_is_evaluated_whatever_the_interval(lab: Lab) -> None:
    result = lab.run(evaluation__every=3, federation__rounds=5)
    assert [row["round"] for row in result.rows if "accuracy" in row] == [3, 5]
