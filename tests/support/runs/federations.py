"""Federations on fake clusters, what observes and disturbs them, and models that misbehave."""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Event, Federation, RunResult, TrainResult
from fedpilot.federated.core.state import Array, State

SOON_S = 60.0
CLIENTS, COHORT, ROUNDS, SEED = 12, 6, 4, 3

USER_CODE = '''
import threading

import torch
from torch import nn

trained = []


class WithBatchNorm(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(input_shape[0], 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, num_classes)
        )

    def forward(self, x):
        return self.layers(x)


class WithScalar(nn.Module):
    """Has a trained parameter without dimensions."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.linear = nn.Linear(input_shape[0], num_classes)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.linear(x) * self.temperature


class Half(nn.Module):
    """Has a parameter of half precision."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.linear = nn.Linear(input_shape[0], num_classes)
        self.scale = nn.Parameter(torch.ones(1, dtype=torch.float16))

    def forward(self, x):
        return self.linear(x) * self.scale.float()


class Mixing(nn.Module):
    """Its samples see each other."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.linear = nn.Linear(input_shape[0], num_classes)

    def forward(self, x):
        return self.linear(x - x.mean(0))


class Frozen(nn.Module):
    """Has nothing to train."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.linear = nn.Linear(input_shape[0], num_classes).requires_grad_(False)

    def forward(self, x):
        return self.linear(x)


class Fragile(nn.Module):
    """Raises on samples of which a feature is above a limit."""

    def __init__(self, input_shape, num_classes, limit=1e9):
        super().__init__()
        self.linear = nn.Linear(input_shape[0], num_classes)
        self.limit = limit

    def forward(self, x):
        if self.training and float(x.detach().max()) > self.limit:
            raise ValueError("this sample is too much for me")
        return self.linear(x)


class Explosive(nn.Module):
    """Gives a loss that is not a number for samples of which a feature is above a limit."""

    def __init__(self, input_shape, num_classes, limit=1e9):
        super().__init__()
        self.linear = nn.Linear(input_shape[0], num_classes)
        self.limit = limit

    def forward(self, x):
        outputs = self.linear(x)
        if self.training and float(x.detach().max()) > self.limit:
            return outputs * float("nan")
        return outputs


class Leaky(nn.Module):
    """Is no chain, and folds."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(input_shape[0], 9), nn.LeakyReLU(), nn.Linear(9, num_classes)
        )

    def forward(self, x):
        return self.layers(x)


class Unused(Leaky):
    """Has a parameter that its code never uses."""

    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        self.spare = nn.Parameter(torch.ones(3))


class Shifted(nn.Module):
    """Subtracts a table of numbers that no training moves."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.top = nn.Linear(*input_shape, num_classes)
        self.register_buffer("table", torch.full(input_shape, 0.1))

    def forward(self, x):
        return self.top(x - self.table)


class Bag(nn.Module):
    """An EmbeddingBag of the features in steps of a half."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.bag, self.top = nn.EmbeddingBag(9, 4), nn.Linear(4, num_classes)

    def forward(self, x):
        return self.top(self.bag((2 * x + 4).clamp(0, 8).long()))


class Recurrent(nn.Module):
    """A GRU over the features."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.gru, self.top = nn.GRU(1, 4, batch_first=True), nn.Linear(4, num_classes)

    def forward(self, x):
        return self.top(self.gru(x.unsqueeze(-1))[0][:, -1])


class Convolutional(nn.Module):
    """Convolutions along the features."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Unflatten(1, (1, input_shape[0])), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(4 * (input_shape[0] - 2), num_classes),
        )

    def forward(self, x):
        return self.layers(x)


def plain_sgd(client):
    """What `training` says, by hand."""
    optimizer = torch.optim.SGD(client.module.parameters(), lr=client.training.learning_rate)
    total, seen = 0.0, 0
    for x, y in client.batches():
        optimizer.zero_grad()
        loss = client.loss(client.module(x), y)
        loss.backward()
        optimizer.step()
        total, seen = total + float(loss.detach()) * len(y), seen + len(y)
    return total / seen


def careless(client):
    """Adds up gradients, whoever left them."""
    x, y = client.data()
    client.loss(client.module(x), y).backward()
    with torch.no_grad():
        for parameter in client.module.parameters():
            parameter -= 0.1 * parameter.grad


def raising(client):
    raise RuntimeError("I do not like this client")


def silent(client):
    """Trains, and tells nothing of its loss."""
    plain_sgd(client)


def half_silent(client):
    loss = plain_sgd(client)
    return loss if client.id.endswith(("0", "2", "4", "6", "8")) else None


def talking(client):
    print("I have", len(client), "samples")
    print(f"and am {client.id}", end="")
    return plain_sgd(client)


def wordy(client):
    return "all went well"


def hoarding(client):
    client.memory["words"] = "these"


def remembering(client):
    """Steps along all gradients that the client has ever seen."""
    x, y = client.data()
    loss = client.loss(client.module(x), y)
    loss.backward()
    with torch.no_grad():
        for name, parameter in client.module.named_parameters():
            known = client.memory.get(name)
            total = parameter.grad + (0 if known is None else torch.as_tensor(known))
            client.memory[name] = total.clone()
            parameter -= 0.05 * total
    return float(loss.detach())


def lossless(client):
    return float("nan")


GATE = threading.Event()
ARRIVED = threading.Semaphore(0)


class Slow(nn.Module):
    """Trains when the gate is open."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.linear = nn.Linear(input_shape[0], num_classes)

    def forward(self, x):
        if self.training:
            ARRIVED.release()
            assert GATE.wait(60)
        return self.linear(x)
'''

ALONE = {"resources__workers": 1}


def open_gate(user_code: str) -> Any:
    code = importlib.import_module(user_code)
    code.GATE.set()
    return code


def shut_gate(user_code: str) -> Any:
    code = importlib.import_module(user_code)
    code.GATE.clear()
    while code.ARRIVED.acquire(blocking=False):
        pass
    return code


Config = dict[str, Any]


class Lab:
    """Federations on fake clusters whose run folders lie in one place."""

    def __init__(self, folder: Path, undo: ExitStack) -> None:
        self.runs = folder / "runs"
        self._undo = undo
        self.cluster = FakeCluster([fake_machine("a", CPU=8)])

    def config(self, **keys: Any) -> Config:
        """The small config; `federation__rounds=2` changes a key."""
        config: Config = {
            "run": {"name": "test", "random_seed": SEED},
            "federation": {
                "number_of_clients": CLIENTS, "clients_per_round": COHORT, "rounds": ROUNDS
            },
            "model": {"model_type": "logistic_regression"},
            "data": {
                "dataset_type": "synthetic",
                "options": {"samples": 300, "features": 6, "classes": 3},
                "data_distribution_kind": "dirichlet",
                "dirichlet_beta": 1.0,
            },
            "training": {"batch_size": 8, "execution": "sequential"},
            "evaluation": {},
            "resources": {"workers": 2},
            "participation": {},
            "outputs": {"folder": str(self.runs), "curves": False},
        }  # fmt: skip
        for key, value in keys.items():
            name, _, inner = key.partition("__")
            section = config.setdefault(name, {})
            if value is None:
                section.pop(inner, None)
            else:
                section[inner] = value
        return config

    def federation(self, *observers: Callable[[Event], None], **keys: Any) -> Federation:
        self.cluster = FakeCluster([fake_machine("a", CPU=8)])
        made = Federation(self.config(**keys), observers=observers, cluster=self.cluster)
        self._undo.callback(made.close)
        return made

    def run(self, *observers: Callable[[Event], None], **keys: Any) -> RunResult:
        with self.federation(*observers, **keys) as federation:
            return federation.run()


def on_a_graph(name: str = "ring", strategy: str = "dpsgd", **keys: Any) -> Config:
    """The keys of a run on a graph."""
    return {
        "federation__clients_per_round": None,
        "federation__rounds": ROUNDS,
        "federation__topology": name,
        "federation__aggregation_strategy": strategy,
        **keys,
    }


def timeless(rows: Any) -> list[dict[str, Any]]:
    """The metrics that must not depend on when and where."""
    timing = ("seconds", "training_seconds", "clients_per_second", "time", "sites", "left_out")
    return [{k: v for k, v in row.items() if k not in timing} for row in rows]


class Log(list[Event]):
    """Observes everything."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    def of(self, name: str) -> list[Mapping[str, Any]]:
        return [event.fields for event in self if event.name == name]


def raising(error: BaseException, at: str, nth: int = 1, **fields: Any) -> Callable[[Event], None]:
    """An observer that raises at the nth event of that name and those fields."""
    seen = 0

    def observer(event: Event) -> None:
        nonlocal seen
        if event.name == at and fields.items() <= event.fields.items():
            seen += 1
            if seen == nth:
                raise error

    return observer


def in_time(work: Callable[[], Any]) -> Any:
    """Do it in a thread of its own; TimeoutError if it hangs, and the thread is left behind."""
    result: list[Any] = []

    def target() -> None:
        try:
            result.append((True, work()))
        except BaseException as error:
            result.append((False, error))

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(SOON_S)
    if not result:
        raise TimeoutError("it hangs")
    fine, found = result[0]
    if fine:
        return found
    raise found


def federation_rows(lab: Lab, run_id: str) -> list[dict[str, Any]]:
    lines = (lab.runs / run_id / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def one_by_one(patch: pytest.MonkeyPatch) -> None:
    """Every client is a piece of its own."""

    def alone(costs: Any, *_: Any) -> list[Any]:
        return list(np.argsort(-costs, kind="stable")[:, np.newaxis])

    patch.setattr("fedpilot.federated.site.rounds.star_round.pieces", alone)


def trains(federation: Federation, client_id: str) -> bool:
    data = federation.loaded.inputs.data
    return bool(data.x[data.partition.indices(data.partition.index_of(client_id))].max() <= 3.0)


EXECUTIONS = ("sequential", "folded", "mapped", "compiled")


def many_pieces(patch: pytest.MonkeyPatch) -> None:
    """However short, a round is cut as a long one is: several pieces for every worker."""
    patch.setattr("fedpilot.federated.core.rounds.chunking.SHORT_S", 0.0)
    patch.setattr("fedpilot.federated.core.rounds.chunking.LEAST_S", 0.0)


def computed(execution: str, **keys: Any) -> dict[str, Any]:
    return {
        "model__model_type": "mlp",
        "model__options": {"hidden": [9]},
        "training__execution": execution,
        "training__chunk_size": 3,
        "training__batch_size": 5,
        "training__number_of_epochs": 2,
        "training__momentum": 0.9,
        "federation__clients_per_round": 9,
        "federation__rounds": 3,
        **keys,
    }


def by_groups(count: int = 4, steps: int = 2, **keys: Any) -> dict[str, Any]:
    """Blocks of all clients that average among themselves."""
    return {
        "federation__clients_per_round": None,
        "federation__rounds": 2,
        "federation__topology": "hierarchical",
        "hierarchy__groups": {"by": "blocks", "count": count},
        "hierarchy__rounds_per_group": steps,
        **keys,
    }


Undisturbed = tuple[dict[str, Any], RunResult]
"""The keys of an execution, and the run of one worker that nothing happened to."""


def merged_by_hand(start: State, results: list[TrainResult]) -> dict[str, Array]:
    total = sum(result.samples for result in results)
    return {
        name: sum(r.state[name].astype("f8") * r.samples for r in results) / total for name in start
    }
