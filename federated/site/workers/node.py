"""FederatedNode: the warm worker on a vnode, which trains one client after another, or many.

A plain class that the fabric runs as a Ray actor. It holds the module, the site's samples (shared,
not copied), the latest global models, its sum, and the samples of the VirtualNodes that it hosts.
Every number that it returns depends on its arguments alone.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ...algorithms import learning_rate
from ...config.schema import Model, Training
from ...core.algorithm import Needs
from ...core.execution.facts import Execution, ExecutionKind
from ...core.population.groups import Steps
from ...core.population.sampling import Indices
from ...core.randomness import Purpose
from ...core.state import Array, State, TensorRole, averaged, in_a_row
from ...core.sums.partial import Partial, Reference, Tally
from ...core.topology.mixing import PUSH_SUM_UNIT, push_sum_step
from ...core.user_code.user_errors import client_failed
from ...engine.compiled import kernels
from ...engine.compiled.mixing import largest
from ...engine.sums.collecting import Collection, Gathering
from ...engine.sums.summing import RunningSum
from ...engine.trainers.group_rounds import GroupRounds, GroupStart, Train
from ...engine.trainers.resident import ResidentModule
from ...engine.trainers.trainer_factory import TrainerFactory
from ...engine.trainers.trainers import Trainers
from ...engine.training.client import client_update_function
from ...engine.training.modules import (
    ONE_GENERATOR,
    client_digests,
    environment,
    fitted,
    loss_function,
    own_rows,
    roles_of,
    seed_torch,
    settle,
    to_tensors,
)
from ...engine.training.norms import NormBound
from ...engine.training.samples import Chunk, Samples
from ...engine.training.training import Start, Trained
from ...errors import ClientFailed, FederatedError
from ...models import build
from ...prepare.inputs.run_inputs import SiteData
from ...prepare.user_code.importing import make_importable
from ...prepare.user_code.user_code import bring
from ..states.layouts import PUSH_SUM_WEIGHT, Layout, Stack, as_slice
from ..states.shared_memory import Borrowed, Lent, sharers
from .attempt import Attempt, NodesJudged, NodesTrained, PieceResult, is_same_code
from .lru import LRU

NODES_HOSTED = 64
"""VirtualNodes whose samples a worker keeps; the least recently used goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Settings that every FederatedNode of a federation gets once."""

    model: Model
    carried: Mapping[str, Any]
    """By config key: code that only the user's process has."""
    training: Training
    evaluation_batch: int
    seed: int
    threads: int
    device: str
    paths: tuple[str, ...]
    code: bytes = b""
    """The archive of modules that came with the run."""
    needs: Needs
    steps: Steps | None = None
    """How groups train, if any: a round then names groups by their numbers."""
    push_sum: bool = False
    """Whether nodes of a graph have weights."""
    max_norm: float | None = None
    """The largest norm of a client's update; larger ones are scaled down to it."""


@dataclass(frozen=True, slots=True)
class _LoadedModel:
    state: State
    tensors: Mapping[str, Tensor]


class _Sum:
    """The worker's sum of one attempt, or its collection."""

    def __init__(self, attempt: int, running: Gathering) -> None:
        self.attempt = attempt
        self.running = running
        self.covered: list[Indices] = []
        self.before = Partial({})
        """What groups measured and refused before their clients trained for the sum."""

    def hand_up(self) -> tuple[Partial, Indices]:
        covered, self.covered = np.concatenate([_NOBODY, *self.covered]), []
        before, self.before = self.before, Partial({})
        partial = self.running.take()
        partial.tally.merge(before.tally)
        partial.refused.extend(before.refused)
        partial.earlier.update(before.earlier)
        return partial, covered


class FederatedNode:
    """A worker; its methods are called one at a time."""

    follows = staticmethod(is_same_code)

    def __init__(self, settings: NodeSettings, data: SiteData) -> None:
        if settings.code:
            make_importable(settings.code)
        sys.path.extend(path for path in settings.paths if path not in sys.path)
        self._settings = settings
        self._data = data
        self._device = settle(settings.threads, settings.device)
        bring(
            {
                "model.model_type": settings.model.model_type,
                "training.loss_function": settings.training.loss_function,
                "training.client_update": settings.training.client_update or "",
            },
            settings.carried,
        )
        model, training = settings.model, settings.training
        with ONE_GENERATOR:
            seed_torch(settings.seed, Purpose.INIT)
            built = build(model.model_type, model.options, data.input_shape, data.num_classes)
        module = fitted(built, data.x.dtype)
        self._roles = roles_of(module, keep_buffers=model.buffers == "keep")
        self._samples = Samples(
            data.x, data.y, data.partition, training, seed=settings.seed, device=self._device
        )
        self._resident = ResidentModule(
            module,
            loss_function(training.loss_function),
            self._device,
            example=self._samples.x[:2].clone(),
        )
        self._trainers = Trainers(
            TrainerFactory(
                resident=self._resident,
                samples=self._samples,
                training=training,
                seed=settings.seed,
                device=self._device,
                update=client_update_function(training.client_update),
            )
        )
        self._models: LRU[_LoadedModel] = LRU()
        self._borrowed = Borrowed()
        self._preparing = ThreadPoolExecutor(1, "next-chunk")
        most = settings.max_norm
        self._bound = None if most is None else NormBound(most, self._roles)
        self._sum: _Sum | None = None
        self._running = self._gathering()
        self._group_rounds: GroupRounds | None = None
        if settings.steps is not None and data.groups is not None:
            self._group_rounds = GroupRounds(
                data.groups,
                settings.steps,
                self._resident,
                self._roles,
                data.partition.client_id,
                self._device,
            )
        self._hosted: OrderedDict[int, Chunk] = OrderedDict()

    def hello(self) -> dict[str, Any]:
        """This worker's process and machine, facts that decide bits, and kernels to compile."""
        who = {"pid": os.getpid(), "host": platform.node(), **environment()}
        who["sharers"] = sharers()
        compiled = self._settings.training.execution == str(ExecutionKind.COMPILED)
        if compiled and not kernels.are_ready(self._samples.x.dtype):
            who["compiles"] = kernels.CHAINS
        return who

    # -- a round ------------------------------------------------------------------------------

    def train(
        self,
        attempt: Attempt,
        clients: Indices,
        memories: Mapping[int, State],
        hand_up: bool,
        key: str,
        state: State | None,
    ) -> PieceResult:
        """Train these clients (or groups) into the attempt's sum; hand it up if asked to."""
        started = time.perf_counter()
        model = self._model(key, state)
        total = self._sum_of(attempt, model)
        samples, arithmetic_s = 0, 0.0
        kept: dict[int, State] = {}
        digests: dict[str, Mapping[str, str]] = {}
        printed: dict[str, str] = {}

        def train(
            some: Indices, step: int, tensors: Mapping[str, Tensor]
        ) -> Iterator[tuple[Chunk, Trained]]:
            nonlocal samples, arithmetic_s
            trainer = self._trainers.checked(attempt.execution)
            rate = learning_rate(self._settings.training, attempt.round_number)
            for chunk in self._chunks(some, attempt.execution.chunk_size):
                for trained in trainer.train(chunk, step, Start(tensors, rate), memories):
                    arithmetic_s += trained.seconds
                    printed.update(trained.printed)
                    if self._bound is not None:
                        self._bound.apply(trained, tensors)
                    yield chunk, trained
                samples += int(chunk.sizes.sum())

        for start in self._starts(attempt, clients, model, train):
            total.before.merge(start.before)
            for chunk, trained in train(start.clients, start.step, start.tensors):
                here = trained.where
                # Tensors that a trainer omits do not move in any step: they are as the round began.
                total.running.add(
                    chunk.clients[here],
                    trained.tensors,
                    chunk.sizes[here],
                    trained.losses,
                    told=trained.told,
                )
                kept.update(trained.memories)
                if attempt.digests:
                    names = map(self._data.partition.client_id, chunk.clients[here].tolist())
                    digests.update(zip(names, client_digests(trained.tensors), strict=True))
        total.covered.append(clients)
        partial, covered = total.hand_up() if hand_up else (None, _NOBODY)
        groups = self._data.groups
        return PieceResult(
            partial=partial,
            covered=covered,
            clients=len(clients) if groups is None else int(groups.sizes[clients].sum()),
            samples=samples,
            seconds=time.perf_counter() - started,
            training_seconds=arithmetic_s,
            memories=kept,
            digests=digests,
            printed=printed,
        )

    def train_nodes(
        self,
        attempt: Attempt,
        clients: Indices,
        own: Stack | Lent | None,
        into: Lent | None,
        key: str,
        state: State | None,
    ) -> NodesTrained:
        """Train each of these clients from its own model, or all from one.

        What they become goes into the memory lent for it, or else into the answer.
        """
        started = time.perf_counter()
        model, trainer = self._model(key, state), self._trainers.checked(attempt.execution)
        own = self._borrowed.stack(own) if isinstance(own, Lent) else own
        push_sum = self._settings.push_sum
        layout = Layout.of_models(model.state, self._roles, push_sum=push_sum)
        became = self._borrowed.stack(into) if into else Stack.empty(layout, len(clients))
        columns, first = became.columns, {} if own is None else own.columns
        weights = columns.pop(PUSH_SUM_WEIGHT, None)
        if weights is not None:
            weights[:] = first[PUSH_SUM_WEIGHT] if first else PUSH_SUM_UNIT
        sizes = {name: np.zeros(len(clients)) for name in averaged(self._roles)}
        references = {name: in_a_row(np.asarray(model.state[name])) for name in sizes}
        losses = np.zeros(len(clients))
        rate = learning_rate(self._settings.training, attempt.round_number)
        samples, arithmetic_s = 0, 0.0
        ascending = np.argsort(clients)
        for chunk in self._chunks(clients, attempt.execution.chunk_size):
            places = ascending[np.searchsorted(clients, chunk.clients, sorter=ascending)]
            its = own_rows(first, as_slice(places), self._device)
            start = Start(model.tensors, rate, its)
            for trained in trainer.train(chunk, attempt.round_number, start, {}):
                here = as_slice(places[trained.where])
                arithmetic_s += trained.seconds
                losses[here] = trained.losses
                for name, column in columns.items():
                    before = first[name][here] if first else np.asarray(model.state[name])[None]
                    if name in trained.tensors:
                        rows = trained.tensors[name].detach().cpu().numpy()
                        if weights is not None and self._roles[name] is TensorRole.TRAINED:
                            rows = push_sum_step(before, rows, weights[here])
                    else:
                        rows = before
                    column[here] = rows
                    if name in sizes:
                        flat = rows.reshape(len(rows), -1).astype(
                            references[name].dtype, copy=False
                        )
                        sizes[name][here] = largest(flat, references[name])
                self._borrowed.let_go()
            samples += int(chunk.sizes.sum())
        return NodesTrained(
            states=None if into else became,
            sizes=sizes,
            losses=losses,
            samples=samples,
            seconds=time.perf_counter() - started,
            training_seconds=arithmetic_s,
        )

    def _starts(
        self, attempt: Attempt, clients: Indices, model: _LoadedModel, train: Train
    ) -> Iterator[GroupStart]:
        """The clients of the attempt's sum with their first model: all together, or by groups."""
        number = attempt.round_number
        if self._group_rounds is None:
            yield GroupStart(
                clients=clients, step=number, tensors=model.tensors, before=Partial({})
            )
            return
        for group in clients.tolist():
            yield self._group_rounds.start(group, number, model.state, model.tensors, train)

    def _chunks(self, clients: Indices, most: int) -> Iterator[Chunk]:
        """Chunks of at most `most` clients; each is prepared while the one before it trains.

        Not on a CPU, where the core that would prepare it is training (measured: 3 % slower).
        """
        count = -(-len(clients) // most)
        parts = np.array_split(clients, count) if count else []
        if self._device.type == "cpu":
            yield from map(self._samples.chunk, parts)
            return
        pending = deque(self._preparing.submit(self._samples.chunk, part) for part in parts[:1])
        for following in parts[1:]:
            pending.append(self._preparing.submit(self._samples.chunk, following))
            yield pending.popleft().result()
        yield from (last.result() for last in pending)

    def hand_up(self, attempt: int) -> PieceResult:
        """The attempt's sum so far; empty if this worker has none (it may be a successor)."""
        if self._sum is None or self._sum.attempt != attempt:
            return PieceResult(partial=None, covered=_NOBODY)
        partial, covered = self._sum.hand_up()
        return PieceResult(partial=partial, covered=covered)

    def _gathering(self) -> Gathering:
        client_id = self._data.partition.client_id
        if self._settings.needs is Needs.EVERY_UPDATE:
            return Collection(self._roles, client_id)
        return RunningSum(self._resident.tensors(), self._roles, client_id)

    def _sum_of(self, attempt: Attempt, model: _LoadedModel) -> _Sum:
        if self._sum is None or self._sum.attempt != attempt.number:
            self._running.begin(model.tensors, attempt.exponents)
            self._sum = _Sum(attempt.number, self._running)
        return self._sum

    def evaluate_test(self, start: int, stop: int, key: str, state: State | None) -> Tally:
        """Evaluate a model on samples [start, stop) of the coordinator's test set."""
        self._resident.load(self._model(key, state).tensors)
        x, y = self._data.test_x[start:stop], self._data.test_y[start:stop]
        return self._judge(x, y, "the model", "evaluating the test set")

    def evaluate_clients(self, clients: Indices, key: str, state: State | None) -> Tally:
        """Evaluate a model on the samples of these clients."""
        self._resident.load(self._model(key, state).tensors)
        tally = Tally()
        for index in clients.tolist():
            tally.merge(self._evaluate(index))
        return tally

    def evaluate_nodes(
        self, clients: Indices, own: Stack, test: Indices | None, key: str, state: State | None
    ) -> NodesJudged:
        """Evaluate each client's own model, on these samples of the test set or on the client's.

        Tensors that clients do not have are those of the run's model.
        """
        whole, columns = self._model(key, state).tensors, own.columns
        columns.pop(PUSH_SUM_WEIGHT, None)
        x, y = self._data.test_x, self._data.test_y
        tally = []
        for place, index in enumerate(clients.tolist()):
            rows = own_rows(columns, slice(place, place + 1), self._device)
            self._resident.load({**whole, **{name: row[0] for name, row in rows.items()}})
            if test is None:
                tally.append(self._evaluate(index))
            else:
                name = self._data.partition.client_id(index)
                tally.append(self._judge(x[test], y[test], name, "evaluating the model of"))
        return NodesJudged(
            correct=np.array([each.correct for each in tally], dtype=np.int64),
            samples=np.array([each.samples for each in tally], dtype=np.int64),
        )

    # -- a single VirtualNode -----------------------------------------------------------------

    def host(self, index: int) -> dict[str, int]:
        """Keep a client's samples; returns their number, and the client evicted for them."""
        chunk = self._samples.chunk([index])
        self._hosted[index] = chunk
        self._hosted.move_to_end(index)
        evicted = -1
        if len(self._hosted) > NODES_HOSTED:
            evicted, _ = self._hosted.popitem(last=False)
        return {"samples": int(chunk.sizes[0]), "evicted": evicted}

    def evict(self, index: int) -> None:
        """Drop a client's samples."""
        self._hosted.pop(index, None)

    def train_one(
        self,
        index: int,
        round_number: int,
        execution: Execution,
        memories: Mapping[int, State],
        key: str,
        state: State | None,
    ) -> tuple[dict[str, Array], Tally]:
        """Train one client; return its state and its training metrics."""
        model = self._model(key, state)
        chunk = self._hosted.get(index) or self._samples.chunk([index])
        trainer = self._trainers.checked(execution)
        start = Start(model.tensors, learning_rate(self._settings.training, round_number))
        (trained,) = trainer.train(chunk, round_number, start, memories)
        if self._bound is not None:
            self._bound.apply(trained, model.tensors)
        new = {name: np.asarray(array).copy() for name, array in model.state.items()}
        for name, tensor in trained.tensors.items():
            new[name] = tensor[0].detach().cpu().numpy().copy()
        return new, Tally().add(int(chunk.sizes[0]), 0, float(trained.losses[0]), told=trained.told)

    def evaluate_one(self, index: int, key: str, state: State | None) -> Tally:
        """Evaluate a model on one client's samples."""
        self._resident.load(self._model(key, state).tensors)
        return self._evaluate(index)

    def aggregate(
        self,
        client_id: str,
        states: Sequence[State],
        weights: Sequence[int],
        key: str,
        state: State | None,
    ) -> dict[str, Array]:
        """The weighted mean of some states, by the same exact sum as in a round.

        They are measured against the global model, so their order does not matter.
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
            tensors = self._resident.laid_out(to_tensors(state, self._device))
            self._models.keep(key, _LoadedModel(state, tensors))
        if not self._models.touch(key):
            raise FederatedError(f"model {key[:12]} is not on this worker")
        return self._models[key]

    def _evaluate(self, index: int) -> Tally:
        rows, client_id = self._data.partition.indices(index), self._data.partition.client_id(index)
        return self._judge(self._data.x[rows], self._data.y[rows], client_id, "evaluating")

    def _judge(self, x: Array, y: Indices, name: str, doing: str) -> Tally:
        try:
            return self._resident.evaluate(x, y, self._settings.evaluation_batch)
        except Exception as error:
            raise client_failed(name, doing, error) from error


_NOBODY: Indices = np.empty(0, dtype=np.int64)
