"""A user's own way of training a client is given all it needs, and nothing of anybody else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from clients import CLASSES, FEATURES, Clients
from fedpilot.federated.core.state import digest
from fedpilot.federated.engine.training.client import ClientUpdate, LocalClient
from fedpilot.federated.errors import ClientFailed

SIZES = (10, 7, 4, 1)


def clients(update: ClientUpdate, sizes: tuple[int, ...] = SIZES, **training: Any) -> Clients:
    return Clients(sizes=sizes, training=training, update=update)


def by_hand(client: LocalClient) -> float:
    """What the section `training` says for plain SGD."""
    optimizer = torch.optim.SGD(client.module.parameters(), lr=client.training.learning_rate)
    losses: list[tuple[float, int]] = []
    for x, y in client.batches():
        optimizer.zero_grad()
        loss = client.loss(client.module(x), y)
        loss.backward()
        optimizer.step()
        losses.append((float(loss.detach()), len(y)))
    per_epoch = -(-len(client) // client.training.batch_size)
    return sum(loss * count for loss, count in losses[-per_epoch:]) / len(client)


def test_the_same_by_hand_gives_the_same_bits() -> None:
    own = clients(by_hand, number_of_epochs=3).train()
    ours = Clients(sizes=SIZES, training={"number_of_epochs": 3}).train()
    for client, after in own.items():
        assert digest(after.state) == digest(ours[client].state)
        assert after.loss == pytest.approx(ours[client].loss, rel=1e-6)


def test_what_a_client_is_given() -> None:
    met: list[LocalClient] = []

    def looking(client: LocalClient) -> None:
        met.append(client)
        assert client.module.training
        assert client.memory == {}
        x, y = client.data()
        assert x.shape == (len(client), FEATURES)
        assert y.shape == (len(client),)
        assert math.isfinite(float(client.loss(client.module(x), y).detach()))

    mine = clients(looking, number_of_epochs=2)
    mine.train([2, 0], number=5)
    assert [client.id for client in met] == ["client_0", "client_2"]
    assert [len(client) for client in met] == [10, 4]
    assert {client.round for client in met} == {5}
    assert met[0].training == mine.settings


def test_batches_are_those_of_the_run_and_data_is_all_of_an_epoch() -> None:
    seen: dict[str, list[Any]] = {}

    def looking(client: LocalClient) -> None:
        batches = [x for x, _ in client.batches()]
        epochs = [client.data(epoch)[0] for epoch in (0, 1)]
        assert torch.equal(torch.cat(batches), torch.cat(epochs))
        sizes = [len(x) for x in batches]
        seen[client.id] = [sizes, *(sorted(map(tuple, epoch.tolist())) for epoch in epochs)]
        assert not torch.equal(epochs[0], epochs[1]), "every epoch has its own order"

    mine = clients(looking, number_of_epochs=2)
    mine.train([0, 1, 2])
    assert seen["client_0"][0] == [4, 4, 2] * 2
    assert seen["client_1"][0] == [4, 3] * 2
    for client in (0, 1, 2):
        held = sorted(map(tuple, mine.data_of(client)[0].tolist()))
        assert seen[f"client_{client}"][1:] == [held, held]


def test_randomness_is_the_clients_own() -> None:
    def noisy(client: LocalClient) -> None:
        with torch.no_grad():
            for parameter in client.module.parameters():
                parameter += torch.randn_like(parameter)

    mine = clients(noisy)
    together = mine.train()
    assert mine.one(2).bits == together[2].bits
    assert len({after.bits for after in together.values()}) == len(SIZES)
    assert mine.one(2, number=2).bits != together[2].bits


def test_gradients_modes_and_buffers_of_the_client_before_are_gone() -> None:
    def careless(client: LocalClient) -> None:
        assert all(parameter.grad is None for parameter in client.module.parameters())
        x, y = client.data()
        client.loss(client.module(x), y).backward()
        with torch.no_grad():
            for parameter in client.module.parameters():
                assert parameter.grad is not None
                parameter -= parameter.grad
        client.module.eval()

    mine = clients(careless)
    together = mine.train()
    for client in mine.everybody:
        assert clients(careless).one(client).bits == together[client].bits


def test_optimizers_of_pytorch_work() -> None:
    def adam(client: LocalClient) -> None:
        optimizer = torch.optim.Adam(client.module.parameters(), lr=0.01)
        for x, y in client.batches():
            optimizer.zero_grad()
            client.loss(client.module(x), y).backward()
            optimizer.step()

    own = clients(adam, number_of_epochs=2)
    settings = {"number_of_epochs": 2, "optimizer": "adam", "learning_rate": 0.01}
    ours = Clients(sizes=SIZES, training=settings)
    for client, after in own.train().items():
        assert digest(after.state) == digest(ours.one(client).state)


@pytest.mark.parametrize(
    ("told", "loss"),
    [
        pytest.param(0.5, 5.0, id="the mean loss"),
        pytest.param(2, 20.0, id="an integer"),
        pytest.param(torch.tensor(0.25), 2.5, id="a tensor"),
        pytest.param(np.float32(0.25), 2.5, id="a number of NumPy"),
        pytest.param(math.nan, math.nan, id="no number"),
        pytest.param(math.inf, math.nan, id="infinity"),
    ],
)
def test_what_it_tells_of_its_loss(told: Any, loss: float) -> None:
    assert clients(lambda _client: told).one(0).loss == pytest.approx(loss, nan_ok=True)


def test_one_that_tells_nothing_of_its_loss_says_so() -> None:
    assert not clients(lambda _client: None).one(0).told
    assert clients(lambda _client: 0.0).one(0).told


@pytest.mark.parametrize("told", ["fine", [1.0, 2.0], {"loss": 1.0}, torch.ones(2)])
def test_anything_else_is_an_error_that_names_the_client(told: Any) -> None:
    with pytest.raises(ClientFailed) as caught:
        clients(lambda _client: told).train([1])
    assert caught.value.client_id == "client_1"


def test_an_exception_names_the_client_and_what_it_was() -> None:
    def raising(client: LocalClient) -> None:
        if client.id == "client_2":
            raise LookupError("where is it?")

    mine = clients(raising)
    with pytest.raises(ClientFailed, match=r"LookupError: where is it\?") as caught:
        mine.train(number=4)
    assert caught.value.client_id == "client_2"
    assert "round 4" in str(caught.value)
    assert mine.one(1).state.keys() == mine.initial.keys(), "the others are none the worse"


# -- memory -----------------------------------------------------------------------------------


def counting(client: LocalClient) -> None:
    before = client.memory.get("rounds", np.zeros(1))
    before += 1
    client.memory["rounds"] = before
    client.memory["weights"] = next(client.module.parameters())


def test_memory_comes_back_as_arrays_and_is_given_again() -> None:
    mine = clients(counting)
    first = mine.train()
    kept = {client: after.memory for client, after in first.items()}
    for memory in kept.values():
        assert memory is not None
        assert memory["rounds"].tolist() == [1.0]
        assert isinstance(memory["weights"], np.ndarray)
    second = mine.train([1, 2], memories={1: kept[1] or {}})
    assert second[1].memory["rounds"].tolist() == [2.0]  # type: ignore[index]
    assert second[2].memory["rounds"].tolist() == [1.0], "nobody finds another's"  # type: ignore[index]


def test_memory_that_was_given_stays_as_it_was() -> None:
    """It may be read-only (from the object store), and a lost piece is trained from it again."""
    given = np.ones(1)
    given.setflags(write=False)
    mine = clients(counting)
    for _ in range(2):
        assert mine.one(1, memories={1: {"rounds": given}}).memory["rounds"].tolist() == [2.0]  # type: ignore[index]
    assert given.tolist() == [1.0]


def test_memory_does_not_change_when_the_worker_goes_on() -> None:
    def keeping(client: LocalClient) -> None:
        parameter = next(client.module.parameters())
        with torch.no_grad():
            parameter += float(client.id[-1])
        client.memory["w"] = parameter

    mine = clients(keeping)
    first = mine.one(1).memory
    assert first is not None
    before = first["w"].copy()
    mine.train()
    assert np.array_equal(first["w"], before)


def test_without_memory_nothing_is_kept() -> None:
    assert clients(lambda _client: None).one(0).memory is None

    def forgetting(client: LocalClient) -> None:
        client.memory.clear()

    assert clients(forgetting).one(0, memories={0: {"a": np.ones(1)}}).memory == {}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        pytest.param("a", [1, 2], "found list under 'a'", id="a list"),
        pytest.param("a", 1.0, "found float under 'a'", id="a number"),
        pytest.param(3, np.ones(1), "under 3", id="a name that is none"),
        pytest.param("a", nn.Linear(1, CLASSES), "found Linear", id="a module"),
        pytest.param("a", np.array([object()]), "object", id="an array of objects"),
    ],
)
def test_memory_that_cannot_be_kept_names_the_client(name: Any, value: Any, words: str) -> None:
    def hoarding(client: LocalClient) -> None:
        client.memory[name] = value

    with pytest.raises(ClientFailed, match=words) as caught:
        clients(hoarding).one(3)
    assert caught.value.client_id == "client_3"
