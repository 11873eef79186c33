"""GraphMixing: mixes a graph's clients at this site with their neighbors, here and elsewhere.

Neighbors at other sites come as states that the other site gave (`give`) and this one took
(`take`), or as partial sums over them, before each mixing step. After the last step the models are
saved as the clients' states, and the answer is the sum of all: the mean over the clients of all
sites is the run's model.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from fedpilot.mediator import Payload

from ...core.population.sampling import Indices
from ...core.population.shares import Share
from ...core.state import Array, State, averaged
from ...core.sums.partial import Partial, Tally
from ...core.topology.covers import Cover
from ...core.topology.mixing import PUSH_SUM_UNIT, Mixing
from ...engine.compiled.mixing import Floats
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
from .partial_sums import LARGEST, WEIGHT, Form, SumForm, TakenSums, made

STATES, TAKEN = "states", "states_taken"
"""Kinds of answers: to `give`, what another site needs; to `take`, what is wrong with what another
site gave."""
LACKING, MIXED, PARTIAL = "lacking", "mixed", "partial"
"""Kinds of answers: a neighbor's model has not come; the models are mixed once; the sum of all."""


@dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """What orders say about what crosses."""

    absent: Indices
    """The absent clients of all sites, and those that sit the round out: their edges are gone."""
    sums: bool
    """Whether both sites know partial sums."""


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
        self._own_sizes: Mapping[str, Floats] | None = trained.sizes
        """By name, (clients,): the largest moves here before this step, once they are known."""
        self._models, self._other = models, other
        self._form = SumForm(
            mean=mean, roles=part.roles, exponents=attempt.exponents, pushes=part.pushes
        )
        self._others = part.full_mixing(attempt.round_number)[1]
        """Neighbors elsewhere, ascending."""
        self._step = 0
        """Mixing steps that are done."""
        self._begin_step()
        self._lock = threading.Lock()

    @property
    def _number(self) -> int:
        return self._attempt.round_number

    def _begin_step(self) -> None:
        self._missing = self._others
        """Neighbors elsewhere whose sites have sent neither states nor sums for this step."""
        self._come = np.empty(0, dtype=np.int64)
        """Those whose states have come."""
        self._sums = TakenSums(len(self._part.clients), self._form)

    # -- between sites --------------------------------------------------------------------------

    def give(self, to: Share, step: int, crossing: Crossing) -> Payload:
        """What crosses to another site for its clients, after so many mixing steps."""
        with self._lock:
            self._check_step(step)
            absent = crossing.absent
            cover = self._part.given(self._number, to, absent, sums=crossing.sums)
            tensors: dict[str, Array] = {}
            if len(cover.states):
                parts = list(self._models.parts(self._part.places(cover.states)))
                tensors = {
                    name: column
                    if len(parts) == 1
                    else np.concatenate([each.columns[name] for each in parts])
                    for name, column in parts[0].columns.items()
                }
            if len(cover.sums):
                weights = self._push_sum_weights() if self._part.pushes else None
                mixing = self._part.sums(self._number, cover, absent, weights)
                sizes = self._sizes_here()
                with ThreadPoolExecutor(THREADS) as threads:
                    tensors |= made(self._models, mixing, self._form, sizes, threads)
            return Payload(kind=STATES, tensors=tensors)

    def _push_sum_weights(self) -> Indices:
        """(clients,)"""
        here = slice(0, len(self._part.clients))
        return column_of(self._models, here, PUSH_SUM_WEIGHT)[:, 0]

    def _sizes_here(self) -> Mapping[str, Floats]:
        if self._own_sizes is None:
            here, exponents = slice(0, len(self._part.clients)), self._attempt.exponents
            self._own_sizes = largest_of(self._models, here, self._mean, exponents)
        return self._own_sizes

    def take(self, of: Share, tensors: State, step: int, crossing: Crossing) -> Payload:
        """Take what another site gives; the answer says what is wrong with it, if anything is."""
        with self._lock:
            self._check_step(step)
            absent = crossing.absent
            cover = self._part.taken(self._number, of, absent, sums=crossing.sums)
            columns, states = self._models.stack.columns, len(cover.states)
            wanted = {
                name: (like.dtype, (states, *like.shape[1:]))
                for name, like in columns.items()
                if states
            }
            wanted_of_sums = self._form.of(len(cover.sums))
            problem = unlike(tensors, {**wanted, **wanted_of_sums}, self._part.population)
            weights: Indices = np.empty(0, dtype=np.int64)
            if not problem and len(cover.sums):
                pushes = self._part.pushes
                weights = (
                    np.array(tensors[WEIGHT])
                    if pushes
                    else self._part.weights_of(self._number, cover, of, absent)
                )
                problem = self._form.problem(tensors, weights, self._most_weight)
            problem = problem or self._too_heavy(of, cover, tensors, weights)
            if not problem:
                here = len(self._part.clients) + np.searchsorted(self._others, cover.states)
                for name in wanted:
                    columns[name][here] = tensors[name]
                self._models.let_go()
                if len(cover.sums):
                    rows = self._part.places(cover.sums)
                    self._sums.add(of, rows, weights, tensors, self._models)
                self._come = np.union1d(self._come, cover.states)
                all_ = self._part.neighbors(self._number, of)
                self._missing = np.setdiff1d(self._missing, all_)
            return Payload(kind=TAKEN, header={"problem": problem})

    @property
    def _most_weight(self) -> int:
        return PUSH_SUM_UNIT * self._part.population

    def _too_heavy(self, of: Share, cover: Cover, tensors: State, summed: Indices) -> str:
        """All push-sum weights sum to a constant: what is wrong if those known here exceed it."""
        if not self._part.pushes:
            return ""
        here = len(self._part.clients)
        came = column_of(self._models, slice(0, here + len(self._others)), PUSH_SUM_WEIGHT)
        known = [self._push_sum_weights(), self._sums.weights_without(of), summed]
        before = np.setdiff1d(self._come, cover.states)
        known.append(came[here + np.searchsorted(self._others, before), 0])
        if PUSH_SUM_WEIGHT in tensors:
            known.append(tensors[PUSH_SUM_WEIGHT])
        total, most = sum(int(each.sum()) for each in known), self._most_weight
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
            needed = self._part.needed(self._number, everybody_absent)
            lacking = np.intersect1d(self._missing, needed)
            if len(lacking):
                return Payload(kind=LACKING, header={"client": int(lacking[0])})
            return self._mix(everybody_absent)

    def _mix(self, everybody_absent: Indices) -> Payload:
        part, exponents = self._part, self._attempt.exponents
        models, other, others, sums = self._models, self._other, self._others, self._sums
        sources = len(part.clients) + len(others)
        mixing = self._mixing(everybody_absent)
        there = np.flatnonzero(~np.isin(part.clients, everybody_absent))
        sizes = self._sizes_of(sources)
        beyond = beyond_range(sizes, mixing, exponents, sums)
        last = self._step + 1 == part.steps
        if beyond:
            self._let_go()
            return self._answer(there, self._beyond(there, beyond))
        with ThreadPoolExecutor(THREADS) as threads:
            mix_models(models, other, sources, self._mean, sizes, mixing, exponents, sums, threads)
            self._models, self._other = self._other, self._models
            self._step, self._own_sizes = self._step + 1, None
            self._begin_step()
            if not last:
                return Payload(kind=MIXED)
            saved = threads.submit(self._save, other)
            answer = self._answer(there, self._summed(there, other), other)
            saved.result()
        part.memory.keep(self._number, self._models, self._other)
        self._let_go()
        return answer

    def _mixing(self, everybody_absent: Indices) -> Mixing:
        """What the clients here take of each other, of states that came, and as sums."""
        part, come = self._part, len(self._part.clients) + np.arange(len(self._others))
        by_sum = come[~np.isin(self._others, self._come)]
        weights = None
        if part.pushes:
            everybody = slice(0, len(part.clients) + len(self._others))
            weights = column_of(self._models, everybody, PUSH_SUM_WEIGHT)[:, 0]
            weights[by_sum] = 0
        mixing = part.mixing(self._number, everybody_absent, weights)
        if not len(by_sum):
            return mixing
        return replace(mixing.without_sources(by_sum), summed=self._sums.weights)

    def _sizes_of(self, sources: int) -> dict[str, Floats]:
        """By name (sources,): the largest moves of the clients here and of states that came."""
        own, here = self._sizes_here(), len(self._part.clients)
        found = {name: np.zeros(sources) for name in own}
        for name, each in own.items():
            found[name][:here] = each
        come = here + np.searchsorted(self._others, self._come)
        for run in np.split(come, np.flatnonzero(np.diff(come) != 1) + 1):
            theirs = largest_of(self._models, as_slice(run), self._mean, own) if len(run) else {}
            for name, each in theirs.items():
                found[name][run] = each
        return found

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


def unlike(tensors: State, wanted: Mapping[str, Form], population: int) -> str:
    """What is wrong with what another site sent of its clients' models; empty if nothing is.

    `wanted` has the type and the shape of each tensor.
    """
    if tensors.keys() != wanted.keys():
        return f"it sent {len(tensors)} tensors of its clients' models, wanted {len(wanted)}"
    most = PUSH_SUM_UNIT * population
    for name, (kind, shape) in wanted.items():
        found = tensors[name]
        if found.shape != shape or found.dtype != kind:
            return (
                f"{name} of its clients is {found.dtype} {list(found.shape)}, wanted "
                f"{kind} {list(shape)}"
            )
        if name == LARGEST:  # infinite, where a move leaves its type
            continue
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            return f"{name} of one of its clients is not finite"
        if name == PUSH_SUM_WEIGHT and not ((found > 0) & (found <= most)).all():
            return f"{name} of one of its clients is not between 1 and {most}"
    return ""
