"""A script's own functions and classes train in the workers of a real Ray."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from real_ray import ENVIRONMENT

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SCRIPT = """
import torch
from torch import nn
from fedpilot import Federation, register_loss


class Net(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.layer = nn.Linear(input_shape[0], num_classes)

    def forward(self, x):
        return self.layer(x)


@register_loss("doubled")
def doubled(outputs, labels):
    return 2 * nn.functional.cross_entropy(outputs, labels)


def update(client):
    x, y = client.data()
    loss = client.loss(client.module(x), y)
    loss.backward()
    with torch.no_grad():
        for parameter in client.module.parameters():
            parameter -= 0.1 * parameter.grad
    print("my loss is", type(client.loss).__name__)
    return loss.item()


with Federation({
    "federation": {"number_of_clients": 4, "rounds": 1},
    "model": {"model_type": "__main__:Net"},
    "data": {"dataset_type": "synthetic", "options": {"samples": 60, "features": 6, "classes": 3}},
    "training": {"loss_function": "doubled", "client_update": "__main__:update"},
    "resources": {"workers": 1},
    "outputs": {"curves": False},
}) as federation:
    federation.run(run_id="cells")
"""


def test_what_a_script_defines_trains_in_workers_and_what_it_prints_is_kept(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "cells"
    (row,) = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert row["train_loss"] > 1.5, "twice the cross entropy of three classes"
    assert sorted((run / "output.log").read_text().splitlines()) == [
        f"round 1 client_{number}: my loss is function" for number in range(4)
    ]
