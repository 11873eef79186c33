"""Runs whose learning rate changes from round to round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from federations import Lab, by_groups, on_a_graph, raising, timeless
from fedpilot.federated.federation.verify import Replay
from records import Archive

HALVED: dict[str, Any] = {
    "federation__rounds": 4,
    "training__learning_rate": 0.08,
    "training__schedule": {"kind": "step", "gamma": 0.5, "every": 1, "warmup_rounds": 1},
}
RATES = [0.08, 0.08, 0.04, 0.02]


CODE = """
import torch
from torch import nn


class Climber(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.classes = num_classes

    def forward(self, x):
        return self.weight.sum().expand(len(x), self.classes)


def up(outputs, labels):
    return -outputs.mean()


def climb(client):
    with torch.no_grad():
        client.module.weight += client.training.learning_rate
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("code")
    (folder / "climbing_for_tests.py").write_text(CODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield "climbing_for_tests"


@pytest.mark.parametrize(
    ("steps", "keys"),
    [
        pytest.param(1, {"training__loss_function": "up"}, id="star"),
        pytest.param(1, {"training__client_update": "climb"}, id="own training code"),
        pytest.param(
            3, by_groups(steps=3, training__loss_function="up"), id="three steps of each group"
        ),
        pytest.param(1, on_a_graph(training__loss_function="up"), id="graph"),
    ],
)
def test_all_steps_of_a_round_are_at_its_rate(
    steps: int, keys: dict[str, Any], code: str, lab: Lab
) -> None:
    """A step adds its rate to each weight; a client takes one for each time that it trains."""
    own = {key: f"{code}:{value}" for key, value in keys.items() if key.startswith("training__")}
    keys = {**keys, **HALVED, **own, "model__model_type": f"{code}:Climber"}
    with lab.federation(**keys, training__batch_size=10_000, training__momentum=0.0) as federation:
        result = federation.run()
        climbed = federation.state["weight"]
    assert [row["learning_rate"] for row in result.rows] == RATES
    np.testing.assert_allclose(climbed, steps * sum(RATES), rtol=1e-9)


def test_it_has_the_same_bits_with_any_workers_after_a_crash_and_when_it_is_verified(
    lab: Lab, archive: Archive
) -> None:
    archive.record("base", **HALVED)
    other = lab.run(**HALVED, resources__workers=3)
    stop = raising(KeyboardInterrupt(), "round_started", 3)
    with pytest.raises(KeyboardInterrupt):
        lab.federation(stop, **HALVED).run(run_id="r")
    resumed = lab.federation(**HALVED).resume("r")
    assert timeless(resumed.rows) == timeless(other.rows)
    assert [row["learning_rate"] for row in resumed.rows] == RATES
    found = archive.verify("base", how=Replay.ALL)
    assert (found.failure, found.differs) == (None, False)
