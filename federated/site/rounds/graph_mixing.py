"""GraphMixing: mixes a graph's clients at this site with their neighbors, here and elsewhere.

Neighbors at other sites come as states that the other site gave (`give`) and this one took
(`take`), before each mixing step. After the last step the models are saved as the clients' states,
and the answer is the sum of all: the mean over the clients of all sites is the run's model.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from fedpilot.mediator import Payload

from ...core.population.sampling import Indices
from ...core.population.shares import Share
from ...core.state import Array, State, averaged
from ...core.sums.partial import Partial, Tally
from ...core.topology.mixing import PUSH_SUM_UNIT
from ...engine.sums.summing import RunningSum
from ...engine.training.modules import client_digests
from ...errors import FederatedError
from ..states.client_states import ClientStates
from ..states.layouts import PUSH_SUM_WEIGHT, as_slice
from ..states.shared_memory import SharedStack
from ..workers.attempt import Attempt
from .client_models import (
    THREADS,
    beyond_range,
    column_of,
    largest_of,
    mix_models,
    squares_of,
)
from .graph_part import GraphPart

STATES, TAKEN = "states", "states_taken"
"""Kinds of answers: to `give`, the models that another site needs; to `take`, what is wrong with
the models that another site gave."""
LACKING, MIXED, PARTIAL = "lacking", "mixed", "partial"
"""Kinds of answers: a neighbor's model has not come; the models are mixed once; the sum of all."""


@dataclass(slots=True, kw_only=True)
class LocalTraining:
    """What a round's training found, for each client in the order of their models."""

    sizes: dict[str, Array]
    """By name of a tensor, (k,): the largest move from the mean before the round."""
    losses: Array
    """(k,)"""
    busy_s: float = 0.0
    arithmetic_s: float = 0.0

    @classmethod
    def nothing(cls, clients: int, names: Iterable[str]) -> Self:
        """Before any training."""
        return cls(sizes={name: np.zeros(clients) for name in names}, losses=np.zeros(clients))


class GraphMixing:
    """The mixing of one attempt at a round; methods may be called from any thread."""

    def __init__(
        self,
        attempt: Attempt,
        mean: State,
        part: GraphPart,
        states: ClientStates | None,
        trained: LocalTraining,
        models: SharedStack,
        other: SharedStack,
    ) -> None:
        """`models` are what the clients became; both stacks belong to this object from now on.

        Their first rows are the clients here, and behind them is room for neighbors elsewhere.
        """
        self._attempt = attempt
        self._mean = mean
        self._part = part
        self._states = states
        self._trained = trained
        self._sizes: Mapping[str, Array] = trained.sizes
        self._models, self._other = models, other
        self._step = 0
        """Mixing steps that are done."""
        self._missing = self._others
        """Neighbors elsewhere whose models have not come for this step."""
        self._lock = threading.Lock()

    @property
    def _number(self) -> int:
        return self._attempt.round_number

    @property
    def _others(self) -> Indices:
        return self._part.full_mixing(self._number)[1]

    # -- between sites --------------------------------------------------------------------------

    def give(self, to: Share, step: int) -> Payload:
        """The models here that clients of another site take, after so many mixing steps."""
        with self._lock:
            self._check_step(step)
            places = self._part.places(self._part.given(self._number, to))
            if not len(places):
                return Payload(kind=STATES)
            parts = [part.columns for part in self._models.parts(places)]
            tensors = parts[0]
            if len(parts) > 1:
                tensors = {name: np.concatenate([each[name] for each in parts]) for name in tensors}
            return Payload(kind=STATES, tensors=tensors)

    def take(self, of: Share, tensors: State, step: int) -> Payload:
        """Take another site's models; the answer says what is wrong with them, if anything is."""
        with self._lock:
            self._check_step(step)
            whose = self._part.taken(self._number, of)
            here = len(self._part.clients) + np.searchsorted(self._others, whose)
            columns = self._models.stack.columns
            problem = self._problem(tensors, columns if len(whose) else {}, len(whose))
            problem = problem or self._too_heavy(whose, tensors)
            if not problem:
                for name, column in tensors.items():
                    columns[name][here] = column
                self._models.let_go()
                self._missing = np.setdiff1d(self._missing, whose)
            return Payload(kind=TAKEN, header={"problem": problem})

    def _problem(self, tensors: State, wanted: State, count: int) -> str:
        if tensors.keys() != wanted.keys():
            return f"it sent {len(tensors)} tensors of its clients' models, wanted {len(wanted)}"
        for name, like in wanted.items():
            found, shape = tensors[name], (count, *like.shape[1:])
            if found.shape != shape or found.dtype != like.dtype:
                return (
                    f"{name} of its clients is {found.dtype} {list(found.shape)}, wanted "
                    f"{like.dtype} {list(shape)}"
                )
            if found.dtype.kind == "f" and not np.isfinite(found).all():
                return f"{name} of one of its clients is not finite"
            most = PUSH_SUM_UNIT * self._part.population
            if name == PUSH_SUM_WEIGHT and not ((found > 0) & (found <= most)).all():
                return f"{name} of one of its clients is not between 1 and {most}"
        return ""

    def _too_heavy(self, whose: Indices, tensors: State) -> str:
        """All push-sum weights sum to a constant: what is wrong if those known here exceed it."""
        if PUSH_SUM_WEIGHT not in tensors:
            return ""
        here = len(self._part.clients)
        known = column_of(self._models, slice(0, here + len(self._others)), PUSH_SUM_WEIGHT)[:, 0]
        came = np.setdiff1d(np.setdiff1d(self._others, self._missing), whose)
        others = known[here + np.searchsorted(self._others, came)]
        total = int(known[:here].sum()) + int(others.sum()) + int(tensors[PUSH_SUM_WEIGHT].sum())
        most = PUSH_SUM_UNIT * self._part.population
        return f"the weights of its clients make {total} of {most}" if total > most else ""

    def _check_step(self, step: int) -> None:
        if step != self._step:
            raise FederatedError(
                f"round {self._number} is at mixing step {self._step + 1} here, and step "
                f"{step + 1} was asked for"
            )

    # -- mixing ---------------------------------------------------------------------------------

    def mix(self, everybody_absent: Indices, step: int) -> Payload:
        """Mix once; the last time, save the models and answer with their sum.

        `everybody_absent`: the absent clients of all sites, and those that sit the round out. If a
        sum could leave int64, the answer says so, and the round has to be repeated on a coarser
        grid. If the model of a neighbor elsewhere has not come, the answer names that client.
        """
        with self._lock:
            self._check_step(step)
            lacking = np.setdiff1d(self._missing, everybody_absent)
            if len(lacking):
                return Payload(kind=LACKING, header={"client": int(lacking[0])})
            self._stand_in(self._missing)
            return self._mix(everybody_absent)

    def _stand_in(self, missing: Indices) -> None:
        """Let the mean stand for models that weigh nothing, so that they have no move."""
        rows = len(self._part.clients) + np.searchsorted(self._others, missing)
        stands = {**self._mean, PUSH_SUM_WEIGHT: np.asarray(0)}
        for name, column in self._models.stack.columns.items() if len(missing) else ():
            column[rows] = stands[name]

    def _mix(self, everybody_absent: Indices) -> Payload:
        part, exponents = self._part, self._attempt.exponents
        models, other, others = self._models, self._other, self._others
        here, sources = len(part.clients), len(part.clients) + len(others)
        weights = None
        if part.pushes:
            weights = column_of(models, slice(0, sources), PUSH_SUM_WEIGHT)[:, 0]
        mixing, _ = part.mixing(self._number, everybody_absent, weights)
        there = np.flatnonzero(~np.isin(part.clients, everybody_absent))
        if self._step:
            self._sizes = largest_of(models, slice(0, sources), self._mean, exponents)
        elif len(others):
            theirs = largest_of(models, slice(here, sources), self._mean, exponents)
            own = self._sizes
            self._sizes = {name: np.append(own[name], theirs[name]) for name in theirs}
        beyond = beyond_range(self._sizes, mixing, exponents)
        last = self._step + 1 == part.steps
        if beyond:
            self._let_go()
            return self._answer(there, self._beyond(there, beyond))
        with ThreadPoolExecutor(THREADS) as threads:
            mix_models(models, other, sources, self._mean, self._sizes, mixing, exponents, threads)
            self._models, self._other = self._other, self._models
            self._step, self._missing = self._step + 1, others
            if not last:
                return Payload(kind=MIXED)
            saved = threads.submit(self._save, other)
            answer = self._answer(there, self._summed(there, other), other)
            saved.result()
        part.memory.keep(self._number, self._models, self._other)
        self._let_go()
        return answer

    def _let_go(self) -> None:
        """Hold no models any more, and take no more steps."""
        del self._models, self._other
        self._step = self._part.steps + 1

    def _save(self, models: SharedStack) -> None:
        if self._states is not None:
            clients, layout = self._part.clients, models.stack.layout
            parts = models.parts(slice(0, len(clients)))
            self._states.save_stack(self._number, clients, layout, parts)

    def _answer(self, there: Indices, total: Partial, mixed: SharedStack | None = None) -> Payload:
        clients, part = self._part.clients, self._part
        absent = np.setdiff1d(clients, clients[there])
        total.refused = [part.client_id(index) for index in absent.tolist()]
        total.tally = Tally()
        trained = part.trains(self._number)
        total.tally.add_clients(part.samples[there], self._trained.losses[there], told=trained)
        header, tensors = total.to_wire()
        names = averaged(part.roles)
        told = {
            "partial": header,
            "busy_seconds": self._trained.busy_s,
            "training_seconds": self._trained.arithmetic_s,
            "squares": 0 if mixed is None else squares_of(mixed, there, self._mean, names),
            "digests": {} if mixed is None else self._digests(mixed),
        }
        return Payload(kind=PARTIAL, header=told, tensors=tensors)

    def _digests(self, mixed: SharedStack) -> Mapping[str, Mapping[str, str]]:
        """Digests of every client's model, if they are asked for."""
        if not self._attempt.digests:
            return {}
        clients = self._part.clients.tolist()
        digests: list[Mapping[str, str]] = []
        for part in mixed.parts(slice(0, len(clients))):
            models = {k: v for k, v in part.tensors.items() if k != PUSH_SUM_WEIGHT}
            digests += client_digests(models)
        return dict(zip(map(self._part.client_id, clients), digests, strict=True))

    def _summed(self, there: Indices, mixed: SharedStack) -> Partial:
        """The sum of how far each model is from the mean before the round; each weighs 1."""
        if not len(there):
            return Partial(self._attempt.exponents)
        mean = {name: torch.from_numpy(np.array(array)) for name, array in self._mean.items()}
        running = RunningSum(mean, self._part.roles, self._part.client_id)
        running.begin(mean, self._attempt.exponents)
        for some in mixed.blocks(as_slice(there)):
            clients, rows = self._part.clients[some], mixed.stack.part(some).tensors
            running.add(clients, rows, np.ones(len(clients), np.int64), np.zeros(len(clients)))
        return running.take()

    def _beyond(self, there: Indices, bounds: Mapping[str, int]) -> Partial:
        """A Partial that says which tensors left their range; its sums are never used."""
        exponents = self._attempt.exponents
        total = Partial(exponents, bounds={name: bounds.get(name, 0) for name in exponents})
        for name in exponents:
            total.sums[name] = np.zeros(self._mean[name].shape, np.int64)
        total.weight = total.clients = len(there)
        return total
