"""FederatedNode: the warm worker on a vnode, which becomes one client after another.

It is a plain class; the fabric runs it as a Ray actor. It holds the model's module, the site's
samples (shared, not copied) and the latest global models, and keeps the samples of the VirtualNodes
it hosts until they are evicted. Everything it returns depends on its arguments alone.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config.schema import Model, Training
from ..core.partial import Partial, Reference, Tally
from ..core.randomness import Purpose
from ..core.recent import Recent
from ..core.sampling import Indices
from ..core.state import Array, State
from ..engine.local_training import LocalTrainer
from ..engine.modules import environment, fitted, roles_of, seed_torch, settle, to_tensors
from ..errors import ClientFailed, FederatedError
from ..materials import SiteData
from ..models import build, register_model

NODES_HOSTED = 64
"""VirtualNodes whose samples a worker keeps; the least recently used goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """What every FederatedNode of a federation is told once."""

    model: Model
    registered: Callable[..., Any] | None
    """The model's class or function where only a registration in the user's process knows it."""
    training: Training
    evaluation_batch: int
    seed: int
    threads: int
    device: str
    paths: tuple[str, ...]
    """Where the user's own modules are found."""


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What a chunk hands up."""

    partial: Partial
    clients: Indices
    samples: int
    seconds: float


class _LoadedModel:
    """A global model as tensors on the device, and as the reference of its round."""

    def __init__(self, state: State, device: torch.device) -> None:
        self.state = state
        self.tensors: Mapping[str, Tensor] = to_tensors(state, device)
        self.references: dict[int, Reference] = {}


class FederatedNode:
    """A worker; its methods are called one at a time."""

    def __init__(self, settings: NodeSettings, data: SiteData) -> None:
        sys.path.extend(path for path in settings.paths if path not in sys.path)
        self._settings = settings
        self._data = data
        self._device = settle(settings.threads, settings.device)
        if settings.registered is not None:
            register_model(settings.model.model_type)(settings.registered)
        seed_torch(settings.seed, Purpose.INIT)
        model = settings.model
        built = build(model.model_type, model.options, data.input_shape, data.num_classes)
        module = fitted(built, data.x.dtype)
        self._roles = roles_of(module, keep_buffers=settings.model.buffers == "keep")
        self._trainer = LocalTrainer(
            module, settings.training, seed=settings.seed, device=self._device
        )
        self._models: Recent[_LoadedModel] = Recent()
        self._hosted: OrderedDict[int, tuple[Tensor, Tensor]] = OrderedDict()

    def hello(self) -> dict[str, Any]:
        """Who this is: process, machine, and what equal bits depend on."""
        return {"pid": os.getpid(), "host": platform.node(), **environment()}

    # -- a round ------------------------------------------------------------------------------

    def train_chunk(
        self, round_number: int, coarser: int, clients: Indices, key: str, state: State | None
    ) -> ChunkResult:
        """Train these clients one after another and sum their updates exactly."""
        started = time.perf_counter()
        model = self._model(key, state)
        reference = model.references.get(coarser)
        if reference is None:
            reference = Reference.of(model.state, self._roles, coarser)
            model.references = {coarser: reference}
        partial = Partial(reference.exponents)
        samples = 0
        for index in clients.tolist():
            client_id = self._data.partition.client_id(index)
            x, y = self._gather(index)
            tally = self._train(client_id, x, y, round_number, model)
            partial.add(client_id, self._trainer.state(), len(y), tally, reference)
            samples += len(y)
        return ChunkResult(partial, clients, samples, time.perf_counter() - started)

    def evaluate_test(self, start: int, stop: int, key: str, state: State | None) -> Tally:
        """Judge a model on samples [start, stop) of the coordinator's test set."""
        self._trainer.load(self._model(key, state).tensors)
        x, y = self._data.test_x, self._data.test_y
        return self._trainer.evaluate(x[start:stop], y[start:stop], self._settings.evaluation_batch)

    def evaluate_clients(self, clients: Indices, key: str, state: State | None) -> Tally:
        """Judge a model on the samples of these clients."""
        self._trainer.load(self._model(key, state).tensors)
        tally = Tally()
        for index in clients.tolist():
            tally.merge(self._evaluate(index))
        return tally

    # -- a single VirtualNode -----------------------------------------------------------------

    def host(self, index: int) -> dict[str, int]:
        """Keep a client's samples here; tells how many they are, and who had to go for them."""
        x, y = self._gather(index)
        self._hosted[index] = (x, y)
        self._hosted.move_to_end(index)
        evicted = -1
        if len(self._hosted) > NODES_HOSTED:
            evicted, _ = self._hosted.popitem(last=False)
        return {"samples": len(y), "evicted": evicted}

    def evict(self, index: int) -> None:
        """Forget a client's samples."""
        self._hosted.pop(index, None)

    def train_one(
        self, index: int, round_number: int, key: str, state: State | None
    ) -> tuple[dict[str, Array], Tally]:
        """Train one client; its state afterwards, and its training metrics."""
        model = self._model(key, state)
        x, y = self._hosted.get(index) or self._gather(index)
        client_id = self._data.partition.client_id(index)
        tally = self._train(client_id, x, y, round_number, model)
        return {name: array.copy() for name, array in self._trainer.state().items()}, tally

    def evaluate_one(self, index: int, key: str, state: State | None) -> Tally:
        """Judge a model on one client's samples."""
        self._trainer.load(self._model(key, state).tensors)
        return self._evaluate(index)

    def aggregate(
        self,
        client_id: str,
        states: Sequence[State],
        weights: Sequence[int],
        key: str,
        state: State | None,
    ) -> dict[str, Array]:
        """The weighted mean of some states, by the same exact sum that a round would use.

        They are measured against the global model, so that their order does not matter.
        """
        model = self._model(key, state)
        reference = Reference.of(model.state, self._roles)
        partial = Partial(reference.exponents)
        for trained, weight in zip(states, weights, strict=True):
            partial.add(client_id, trained, weight, Tally(), reference)
        if partial.refused:
            raise ClientFailed(client_id, "aggregating", "a state is not finite")
        if partial.overflowed:
            raise ClientFailed(client_id, "aggregating", "the states lie too far apart")
        mean = partial.mean()
        merged = {name: np.asarray(array).copy() for name, array in model.state.items()}
        for name, value in reference.values.items():
            merged[name] = np.asarray(value + mean[name], dtype=merged[name].dtype)
        return merged | partial.largest

    # -- inside -------------------------------------------------------------------------------

    def _model(self, key: str, state: State | None) -> _LoadedModel:
        if state is not None:
            self._models.keep(key, _LoadedModel(state, self._device))
        if not self._models.touch(key):
            raise FederatedError(f"model {key[:12]} is not on this worker")
        return self._models[key]

    def _gather(self, index: int) -> tuple[Tensor, Tensor]:
        rows = self._data.partition.indices(index)
        x = torch.from_numpy(self._data.x[rows]).to(self._device)
        return x, torch.from_numpy(self._data.y[rows]).to(self._device)

    def _train(
        self, client_id: str, x: Tensor, y: Tensor, round_number: int, model: _LoadedModel
    ) -> Tally:
        try:
            self._trainer.load(model.tensors)
            return self._trainer.train(client_id, x, y, round_number)
        except Exception as error:
            raise ClientFailed(
                client_id, f"training in round {round_number}", f"{type(error).__name__}: {error}"
            ) from error

    def _evaluate(self, index: int) -> Tally:
        rows = self._data.partition.indices(index)
        try:
            return self._trainer.evaluate(
                self._data.x[rows], self._data.y[rows], self._settings.evaluation_batch
            )
        except Exception as error:
            client_id = self._data.partition.client_id(index)
            reason = f"{type(error).__name__}: {error}"
            raise ClientFailed(client_id, "evaluating", reason) from error
