"""Clients without a federation: samples, a model and the trainers of one worker, for the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedpilot.federated.algorithms import learning_rate
from fedpilot.federated.config.schema import Training
from fedpilot.federated.core.execution.facts import Execution, ExecutionKind
from fedpilot.federated.core.population.partitions.client_ids import PatternIds
from fedpilot.federated.core.population.partitions.disjoint import Disjoint
from fedpilot.federated.core.population.partitions.partition import PartitionKind
from fedpilot.federated.core.state import Array, State, digest
from fedpilot.federated.engine.trainers.resident import ResidentModule
from fedpilot.federated.engine.trainers.trainer_factory import TrainerFactory
from fedpilot.federated.engine.trainers.trainers import Trainers
from fedpilot.federated.engine.training.client import ClientUpdate
from fedpilot.federated.engine.training.modules import loss_function, state_of, to_tensors
from fedpilot.federated.engine.training.samples import Chunk, Samples
from fedpilot.federated.engine.training.training import Start

CPU = torch.device("cpu")
FEATURES, CLASSES = 5, 3
SEED = 7


def partition_of(sizes: Sequence[int]) -> Disjoint:
    """Clients `client_0`, `client_1`, ... that hold so many samples, one slice after another."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    order = np.random.default_rng(0).permutation(int(offsets[-1]))
    ids = PatternIds("client_{index}", len(sizes))
    return Disjoint(kind=PartitionKind.IID, ids=ids, order=order, offsets=offsets)


def numbers(count: int, shape: Sequence[int] = (FEATURES,), seed: int = 1) -> Array:
    """Samples of random numbers, float32."""
    return np.random.default_rng(seed).normal(size=(count, *shape)).astype(np.float32)


def tokens(count: int, length: int, words: int, seed: int = 1) -> Array:
    """Samples of random tokens."""
    return np.random.default_rng(seed).integers(0, words, size=(count, length))


def labels(count: int, classes: int = CLASSES, seed: int = 2) -> Array:
    """Random labels."""
    return np.random.default_rng(seed).integers(0, classes, size=count)


def dense() -> nn.Module:
    """A small network."""
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


@dataclass
class After:
    """What a client became."""

    state: dict[str, Array]
    loss: float
    """Sum of its samples' losses in the last epoch."""
    memory: State | None
    told: bool = True
    """Whether it tells its loss."""

    @property
    def bits(self) -> tuple[str, float]:
        """All of it, to compare."""
        return digest(self.state), self.loss


@dataclass
class Clients:
    """A model and clients with unequal numbers of samples, on one worker."""

    make: Callable[[], nn.Module] = dense
    x: Array | None = None
    y: Array | None = None
    sizes: Sequence[int] = (23, 9, 4, 1, 0, 14)
    training: Mapping[str, Any] = field(default_factory=dict)
    update: ClientUpdate | None = None
    double: bool = False
    device: str = "cpu"
    all_rows: bool | None = None
    """Whether each step computes all rows of a chunk; as its device needs by default."""

    def __post_init__(self) -> None:
        self._device = torch.device(self.device)
        total = int(sum(self.sizes))
        x = numbers(total) if self.x is None else self.x
        if self.double and x.dtype == np.float32:
            x = x.astype(np.float64)
        self.all_x, self.all_y = x, labels(total) if self.y is None else self.y
        torch.manual_seed(1)
        module = self.make()
        self.module = module.double() if self.double else module
        self.initial = state_of(self.module)
        self.settings = Training(**({"batch_size": 4, "learning_rate": 0.05} | {**self.training}))
        self.partition = partition_of(self.sizes)
        self.samples = Samples(
            self.all_x, self.all_y, self.partition, self.settings, seed=SEED, device=self._device
        )
        example = self.samples.x[:2].clone()
        loss = loss_function(self.settings.loss_function)
        self.resident = ResidentModule(
            self.module.to(self._device), loss, self._device, example=example
        )
        self.trainers = Trainers(
            TrainerFactory(
                resident=self.resident,
                samples=self.samples,
                training=self.settings,
                seed=SEED,
                device=self._device,
                update=self.update,
                all_rows=self.all_rows,
            )
        )

    @property
    def everybody(self) -> list[int]:
        """All clients."""
        return list(range(len(self.sizes)))

    def data_of(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's samples and labels, in the order of the data set."""
        rows = self.partition.indices(client)
        return torch.from_numpy(self.all_x[rows]), torch.from_numpy(self.all_y[rows])

    def tensors(self, model: State | None = None) -> dict[str, Tensor]:
        """A model as a worker holds it; the first one unless another is given."""
        return self.resident.laid_out(
            to_tensors(self.initial if model is None else model, self._device)
        )

    def train(
        self,
        clients: Sequence[int] | npt.NDArray[np.int64] | None = None,
        *,
        kind: str = "sequential",
        chunk_size: int = 64,
        number: int = 1,
        model: State | None = None,
        memories: Mapping[int, State] | None = None,
        own: Mapping[int, Mapping[str, Array]] | None = None,
    ) -> dict[int, After]:
        """Train clients in chunks as they come; what each became.

        They begin with one model, or with `own`, by client the tensors that it has of its own.
        """
        asked = self.everybody if clients is None else list(clients)
        tensors = self.tensors(model)
        trainer = self.trainers.get(Execution(ExecutionKind(kind), chunk_size))
        became: dict[int, After] = {}
        for start in range(0, len(asked), chunk_size):
            chunk = self.samples.chunk(asked[start : start + chunk_size])
            rows = {} if own is None else self._rows(chunk, own)
            begun = Start(tensors, learning_rate(self.settings, number), rows)
            for trained in trainer.train(chunk, number, begun, memories or {}):
                here = chunk.clients[trained.where].tolist()
                chunk_at = trained.where.start
                for at, client in enumerate(here):
                    state = {n: t.cpu().numpy().copy() for n, t in begun.of(chunk_at + at).items()}
                    for name, rows in trained.tensors.items():
                        state[name] = rows[at].detach().cpu().numpy().copy()
                    memory = trained.memories.get(client)
                    became[client] = After(state, float(trained.losses[at]), memory, trained.told)
        return became

    def _rows(self, chunk: Chunk, own: Mapping[int, Mapping[str, Array]]) -> dict[str, Tensor]:
        states = [own[client] for client in chunk.clients.tolist()]
        return {
            name: torch.stack([torch.from_numpy(np.array(state[name])) for state in states]).to(
                self._device
            )
            for name in states[0]
        }

    def one(self, client: int = 0, **how: Any) -> After:
        """Train one client alone."""
        return self.train([client], **how)[client]


def mean_of(became: Mapping[int, After], sizes: Sequence[int]) -> dict[str, Array]:
    """The mean model by samples, as the next round's global model."""
    total = sum(sizes[client] for client in became)
    first = next(iter(became.values())).state
    return {
        name: (
            sum(after.state[name] * (sizes[client] / total) for client, after in became.items())
        ).astype(array.dtype)
        if array.dtype.kind == "f"
        else array
        for name, array in first.items()
    }


def apart(one: Mapping[int, After], other: Mapping[int, After]) -> float:
    """The largest difference of any weight or loss."""
    assert one.keys() == other.keys()
    weights = [
        np.abs(one[client].state[name] - other[client].state[name]).max(initial=0.0)
        for client in one
        for name in one[client].state
    ]
    return float(max(*weights, *(abs(one[c].loss - other[c].loss) for c in one)))
