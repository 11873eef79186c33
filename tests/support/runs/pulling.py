"""Clients of unequal size that pull a float64 model towards goals, so that rounds can be foretold.

In round 2 client 3 sends no numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpilot.federated.core.state import Array

CLIENTS, ROUNDS = 5, 3
CODE = """
import torch
from torch import nn


class Double(nn.Module):
    def __init__(self, input_shape, num_classes, size=0.4):
        super().__init__()
        start = torch.linspace(-size, size, input_shape[0] * num_classes, dtype=torch.float64)
        self.weight = nn.Parameter(start.reshape(input_shape[0], num_classes))
        self.register_buffer("seen", torch.zeros(2, dtype=torch.float64))

    def forward(self, x):
        return x.double() @ (self.weight / self.weight.abs().max())


def pulled(client):
    index = int(client.id.rpartition("_")[2])
    with torch.no_grad():
        places = torch.arange(client.module.weight.numel(), dtype=torch.float64)
        goal = 0.4 * torch.cos(places * (index + 1)).reshape(client.module.weight.shape)
        client.module.weight += 0.5 * (goal - client.module.weight)
        client.module.seen += 0.01 * index
        if index == 3 and client.round == 2:
            client.module.weight.fill_(float("nan"))


def leaping(client):
    with torch.no_grad():
        client.module.weight *= 2
"""


@contextmanager
def pulling_code(folder: Path) -> Iterator[str]:
    """The name of a module with this code, which can be imported in here."""
    (folder / "pulling_code_for_tests.py").write_text(CODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield "pulling_code_for_tests"


def pulling_keys(code: str) -> dict[str, Any]:
    """What a small config is changed by."""
    return {
        "federation__number_of_clients": CLIENTS,
        "federation__clients_per_round": None,
        "federation__rounds": ROUNDS,
        "model__model_type": f"{code}:Double",
        "training__client_update": f"{code}:pulled",
    }


def present(round_number: int) -> list[int]:
    """The clients whose updates count."""
    return [i for i in range(CLIENTS) if not (i == 3 and round_number == 2)]


def goal(client: int, shape: tuple[int, ...]) -> Array:
    """Where a client pulls the weight to, half of the way in a round."""
    places = np.arange(np.prod(shape))
    pull: Array = 0.4 * np.cos(places * (client + 1)).reshape(shape)
    return pull
