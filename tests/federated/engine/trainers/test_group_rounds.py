"""A group's steps are what one would reckon by hand, and its last one is everybody's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from fedpilot.federated.core.population.groups import Steps, grouped
from fedpilot.federated.core.population.partitions.disjoint import natural
from fedpilot.federated.core.population.sampling import Indices
from fedpilot.federated.core.sums.partial import grid
from fedpilot.federated.engine.sums.summing import RunningSum
from fedpilot.federated.engine.trainers.group_rounds import GroupRounds, GroupStart
from fedpilot.federated.engine.trainers.resident import ResidentModule
from fedpilot.federated.engine.training.modules import loss_function, roles_of, state_of
from fedpilot.federated.engine.training.samples import Chunk
from fedpilot.federated.engine.training.training import Trained
from fedpilot.federated.errors import FederatedError

CPU = torch.device("cpu")
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class Pulling:
    """Clients of a weight that move the model by so much, whatever it is; and those who train them.

    `pulls` are (clients, steps, 3); `weights` (clients,); `kinds` the clients' groups.
    """

    def __init__(self, kinds: list[int], weights: list[int], pulls: Floats) -> None:
        torch.manual_seed(1)
        self.pulls, self.weights = pulls.astype(np.float32), np.array(weights)
        self.module = nn.Linear(3, 1, bias=False)
        self.state = state_of(self.module)
        self.roles = roles_of(self.module, keep_buffers=False)
        self.resident = ResidentModule(self.module, loss_function("cross_entropy"), CPU)
        self.clients = natural(np.array([f"c{i:02}" for i in range(len(kinds))]))
        names = [f"kind {kind}" for kind in range(5)]
        self.groups = grouped(np.array(kinds), names, self.clients)
        self.steps: list[tuple[int, list[int]]] = []
        """Whom was trained for which step."""

    def train(
        self, clients: Indices, step: int, tensors: Mapping[str, Tensor]
    ) -> Iterator[tuple[Chunk, Trained]]:
        self.steps.append((step, clients.tolist()))
        if not len(clients):
            return
        moved = tensors["weight"] + torch.from_numpy(self.pulls[clients, step - 1]).unsqueeze(1)
        sizes = self.weights[clients]
        chunk = Chunk(clients, self.clients.keys(clients), sizes, np.zeros(0, dtype=np.int64))
        losses = sizes.astype(np.float64) * step
        yield chunk, Trained(slice(0, len(clients)), {"weight": moved}, losses, 0.0)

    def start(self, group: int, per_round: int) -> GroupStart:
        rounds = GroupRounds(
            self.groups,
            Steps(per_round=per_round, seed=1),
            self.resident,
            self.roles,
            self.clients.client_id,
            CPU,
        )
        tensors = {name: torch.from_numpy(value.copy()) for name, value in self.state.items()}
        return rounds.start(group, 1, self.state, tensors, self.train)

    def total(self, per_round: int) -> Floats:
        """The mean of a round of all groups."""
        running = RunningSum(self.resident.tensors(), self.roles, self.clients.client_id)
        tensors = {name: torch.from_numpy(value.copy()) for name, value in self.state.items()}
        running.begin(tensors, grid(self.state, self.roles))
        for group in range(len(self.groups)):
            start = self.start(group, per_round)
            for chunk, trained in self.train(start.clients, start.step, start.tensors):
                running.add(chunk.clients, trained.tensors, chunk.sizes, trained.losses)
        return running.take().mean()["weight"]

    def model(self, group: int, steps: int) -> Floats:
        """By hand: what becomes of a group's model."""
        model = self.state["weight"].astype(np.float64)
        members = self.groups.of(group)
        for step in range(steps):
            pull = self.pulls[members, step].astype(np.float64)
            model = model + self.weights[members] @ pull / self.weights[members].sum()
        return model


@st.composite
def pulling(draw: st.DrawFn) -> tuple[Pulling, int]:
    kinds = draw(st.lists(st.integers(0, 2), min_size=1, max_size=6))
    weights = draw(st.lists(st.integers(1, 50), min_size=len(kinds), max_size=len(kinds)))
    per_round = draw(st.integers(1, 3))
    seed = draw(st.integers(0, 1000))
    pulls = np.random.default_rng(seed).normal(size=(len(kinds), per_round, 3))
    return Pulling(kinds, weights, pulls), per_round


@settings(max_examples=40, deadline=None)
@given(pulling())
def test_a_group_is_a_federation_of_its_own_until_its_last_step(
    made: tuple[Pulling, int],
) -> None:
    clients, per_round = made
    for group in range(len(clients.groups)):
        start = clients.start(group, per_round)
        expected = clients.model(group, per_round - 1)
        np.testing.assert_allclose(start.tensors["weight"].numpy(), expected, atol=2e-6)
        assert start.step == per_round
        members = clients.groups.of(group)
        assert start.clients.tolist() == members.tolist()
        measured = int(clients.weights[members].sum()) * (per_round - 1)
        assert start.before.tally.samples == measured


@settings(max_examples=40, deadline=None)
@given(pulling())
def test_the_round_is_the_mean_of_the_groups_models(made: tuple[Pulling, int]) -> None:
    clients, per_round = made
    count = len(clients.groups)
    weights = [clients.weights[clients.groups.of(group)].sum() for group in range(count)]
    models = [clients.model(group, per_round) for group in range(count)]
    moved = np.average(models, axis=0, weights=weights) - clients.state["weight"]
    np.testing.assert_allclose(clients.total(per_round), moved, atol=2e-6)


def test_a_group_with_one_step_is_added_up_as_a_star_is() -> None:
    pulls = np.random.default_rng(1).normal(size=(6, 1, 3))
    weights = [3, 1, 4, 1, 5, 9]
    groups = Pulling([0, 1, 0, 2, 1, 0], weights, pulls).total(1)
    star = Pulling([0] * 6, weights, pulls).total(1)
    assert groups.tobytes() == star.tobytes()


def test_a_sum_out_of_range_is_computed_again_on_a_coarser_grid() -> None:
    clients = Pulling([0, 0], [10_000, 10_000], np.full((2, 2, 3), 1e9))
    start = clients.start(0, 2)
    np.testing.assert_allclose(start.tensors["weight"].numpy(), 1e9, rtol=1e-6)
    assert clients.steps == [(1, [0, 1])] * 3, "the grid gave up 16 bits"
    assert start.before.tally.samples == 20_000, "and it is counted once"


def test_updates_out_of_any_range_are_told() -> None:
    clients = Pulling([0, 0], [10, 10], np.full((2, 2, 3), 3e38))
    with pytest.raises(FederatedError, match=r"group kind 0: the updates of weight are out of any"):
        clients.start(0, 2)


def test_a_client_that_is_not_finite_is_named_once_and_left_out_from_then_on() -> None:
    pulls = np.ones((3, 3, 3))
    pulls[1, 0] = np.nan
    clients = Pulling([0, 0, 0], [1, 1, 1], pulls)
    start = clients.start(0, 3)
    assert start.before.refused == ["c01"]
    assert clients.steps == [(1, [0, 1, 2]), (2, [0, 2])]
    assert start.clients.tolist() == [0, 2]
    moved = start.tensors["weight"].numpy() - clients.state["weight"]
    np.testing.assert_allclose(moved, 2.0, rtol=1e-6)


def test_how_many_were_added_up_in_each_step_is_known() -> None:
    """One client in the first, and nobody after it: what was measured is of one."""
    pulls = np.ones((3, 3, 3))
    pulls[1:, 0] = pulls[0, 1] = np.nan
    before = Pulling([0, 0, 0], [5, 1, 1], pulls).start(0, 3).before
    assert (before.earlier, before.clients, before.tally.samples) == ({1: 1}, 0, 5)
    assert before.fewest == 1
    two = Pulling([0, 0, 0], [1, 1, 1], np.ones((3, 3, 3))).start(0, 3).before
    assert two.earlier == {1: 3, 2: 3}
    together = before.merge(two)
    assert together.earlier == {1: 4, 2: 3}
    together.clients = 2
    assert together.fewest == 2


def test_a_group_of_which_nobody_is_finite_stays_where_it_is() -> None:
    clients = Pulling([0, 0], [1, 1], np.full((2, 2, 3), np.inf))
    start = clients.start(0, 2)
    assert start.before.refused == ["c00", "c01"]
    assert start.clients.tolist() == []
    assert start.tensors["weight"].numpy().tobytes() == clients.state["weight"].tobytes()
