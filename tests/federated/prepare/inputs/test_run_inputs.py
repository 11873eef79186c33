"""What a round of a run computes and moves follows from its config."""

from __future__ import annotations

from typing import Any

import pytest

from fedpilot.federated.config.schema import RunConfig
from fedpilot.federated.prepare.inputs.local_data import gather
from fedpilot.mediator.core.assignment import RoundWork

PARAMETERS = 6 * 3 + 3
"""Of a logistic regression of six features and three classes."""


def work(strategy: str = "fedavg", **federation: Any) -> RoundWork:
    config = RunConfig.model_validate(
        {
            "federation": {
                "number_of_clients": 10,
                "rounds": 1,
                "aggregation_strategy": strategy,
                **federation,
            },
            "graph": {"mixing_steps": 3} if "topology" in federation else None,
            "model": {"model_type": "logistic_regression"},
            "data": {
                "dataset_type": "synthetic",
                "options": {"samples": 300, "features": 6, "classes": 3},
            },
        }
    )
    return gather(config).round_work(config)


def test_a_model_of_float32_goes_out_and_eight_bytes_a_parameter_come_back() -> None:
    found = work(clients_per_round=5)
    assert (found.model_bytes, found.sum_bytes) == (4 * PARAMETERS, 8 * PARAMETERS)
    assert (found.update_bytes, found.trained) == (0, 0.5)
    assert found.samples is not None
    assert len(found.samples) == 10


def test_the_median_brings_every_update() -> None:
    assert work("median").update_bytes >= 4 * PARAMETERS


@pytest.mark.parametrize(
    ("strategy", "trained"),
    [
        pytest.param("dpsgd", 1.0, id="all clients train in each round"),
        pytest.param("gossip", 0.0, id="only the first round trains"),
    ],
)
def test_on_a_graph_models_move_in_each_mixing_step(strategy: str, trained: float) -> None:
    found = work(strategy, topology="ring")
    assert (found.mixing_steps, found.trained) == (3, trained)
