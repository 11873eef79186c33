"""What a client becomes depends on the model, its samples and (seed, round, id): nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clients import CLASSES, FEATURES, Clients, dense, numbers
from fedpilot.federated.core.state import digest
from fedpilot.federated.engine.training.modules import state_of
from fedpilot.federated.errors import ClientFailed
from pairings import paired
from trained_models import (
    KINDS,
    LARGE,
    MADE,
    OF_PYTORCH,
    OPTIMIZERS,
    OTHER,
    SMALL,
    TRAINED,
    InPlace,
    Make,
    Reassigning,
    Shared,
    Tied,
    clients,
    with_batch_norm,
    with_dropout,
)

BY_NAME: dict[str, dict[str, Any]] = {str(each.id): each.values[0] for each in OPTIMIZERS}

# -- nothing else -----------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "kind", "optimizer"), paired(TRAINED, list(BY_NAME)))
def test_the_result_does_not_depend_on_who_trained_before(
    make: Make, kind: str, optimizer: str
) -> None:
    training = BY_NAME[optimizer]
    alone = clients(make, **training).one(OTHER, kind=kind).bits
    after = clients(make, **training)
    after.one(LARGE, kind=kind)
    after.train([SMALL, LARGE], kind=kind, number=5)
    assert after.one(OTHER, kind=kind).bits == alone
    assert after.one(OTHER, kind=kind).bits == alone, "nor on having trained itself"


@pytest.mark.parametrize("make", MADE)
def test_loading_a_model_gives_that_model_bit_for_bit(make: Make) -> None:
    trained = clients(make)
    trained.one()
    trained.resident.load(trained.tensors())
    found = {name: tensor.numpy() for name, tensor in trained.resident.tensors().items()}
    assert digest(found) == digest(trained.initial)


@pytest.mark.parametrize(("make", "kind"), TRAINED)
def test_training_changes_what_it_returns(make: Make, kind: str) -> None:
    trained = clients(make)
    assert digest(trained.one(kind=kind).state) != digest(trained.initial)


@pytest.mark.parametrize(("make", "kind", "optimizer"), paired(TRAINED, list(BY_NAME)))
def test_clients_that_begin_with_models_of_their_own_train_as_each_does_alone(
    make: Make, kind: str, optimizer: str
) -> None:
    trained = clients(make, **BY_NAME[optimizer])
    first = {client: after.state for client, after in trained.train(kind=kind).items()}
    moved = [
        name
        for name, array in trained.initial.items()
        if any(not np.array_equal(state[name], array) for state in first.values())
    ]
    own = {client: {name: state[name] for name in moved} for client, state in first.items()}
    alone = {
        client: trained.one(client, kind=kind, model=state, number=2).bits
        for client, state in first.items()
    }
    assert len(set(alone.values())) == len(alone)
    for some, chunk_size in ((trained.everybody, 64), ([SMALL, OTHER, LARGE], 2)):
        found = trained.train(some, kind=kind, chunk_size=chunk_size, number=2, own=own)
        assert {client: after.bits for client, after in found.items()} == alone


@pytest.mark.parametrize("kind", ["sequential", "folded", "mapped"])
def test_tensors_that_no_client_trains_may_be_among_its_own(kind: str) -> None:
    def frozen() -> nn.Module:
        module = dense()
        next(module.parameters()).requires_grad_(False)
        return module

    trained = clients(frozen)
    own = {client: {"0.weight": trained.initial["0.weight"]} for client in trained.everybody}
    alone = {client: after.bits for client, after in trained.train(kind=kind).items()}
    found = trained.train(kind=kind, own=own)
    assert {client: after.bits for client, after in found.items()} == alone


@pytest.mark.parametrize("kind", ["sequential", "folded"])
def test_what_other_generators_drew_does_not_matter(kind: str) -> None:
    first = clients(with_dropout).one(kind=kind).bits
    torch.manual_seed(99)
    np.random.default_rng(1).normal()
    torch.rand(100)
    again = clients(with_dropout)
    torch.rand(100)
    assert again.one(kind=kind).bits == first


@pytest.mark.parametrize("kind", ["sequential", "folded"])
def test_whatever_ought_to_matter_does(kind: str) -> None:
    """Client, round and samples each change what dropout lets through."""
    same = numbers(23)
    two = Clients(with_dropout, x=np.concatenate([same, same]), y=np.arange(46) % 23 % CLASSES,
                  sizes=(23, 23), training={"shuffle": False})  # fmt: skip
    two.partition.order[:] = np.arange(46)
    first = two.one(0, kind=kind).bits
    assert two.one(0, kind=kind).bits == first
    assert two.one(1, kind=kind).bits != first, "another client with equal samples"
    assert two.one(0, kind=kind, number=2).bits != first, "another round"
    two.all_x[3] += 1
    assert two.one(0, kind=kind).bits != first, "other samples"


@pytest.mark.parametrize("kind", KINDS)
def test_shuffling_depends_on_the_round(kind: str) -> None:
    plain = clients()
    assert plain.one(kind=kind, number=1).bits != plain.one(kind=kind, number=2).bits


@pytest.mark.parametrize("kind", KINDS)
def test_without_shuffling_the_round_matters_only_to_dropout(kind: str) -> None:
    plain = clients(shuffle=False)
    assert plain.one(kind=kind, number=1).bits == plain.one(kind=kind, number=2).bits
    if kind in ("sequential", "folded"):
        dropping = clients(with_dropout, shuffle=False)
        first, second = (dropping.one(kind=kind, number=number).bits for number in (1, 2))
        assert first != second


# -- what training is -------------------------------------------------------------------------


@pytest.mark.parametrize("training", OPTIMIZERS)
def test_training_is_what_pytorchs_own_optimizer_does(training: dict[str, Any]) -> None:
    settings = {"learning_rate": 0.1, "batch_size": 4, "number_of_epochs": 3, **training}
    mine = Clients(dense, sizes=(10,), training={**settings, "shuffle": False})
    found = mine.one().state
    x, y = mine.data_of(0)
    torch.manual_seed(1)
    module = dense()
    options = {"lr": settings["learning_rate"], "weight_decay": settings.get("weight_decay", 0.0)}
    if settings["optimizer"] == "sgd":
        options |= {"momentum": settings.get("momentum", 0.0)}
        options |= {"nesterov": settings.get("nesterov", False)}
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    optimizer = kinds[settings["optimizer"]](module.parameters(), **options)
    began = [parameter.detach().clone() for parameter in module.parameters()]
    for _ in range(3):
        for start in range(0, 10, 4):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x[start : start + 4]), y[start : start + 4])
            loss.backward()
            if mu := settings.get("proximal_mu"):
                for parameter, origin in zip(module.parameters(), began, strict=True):
                    parameter.grad.add_(parameter.detach() - origin, alpha=mu)
            optimizer.step()
    assert digest(found) == digest(state_of(module))


@pytest.mark.parametrize("kind", KINDS)
def test_a_proximal_term_is_fedproxs_penalty_of_the_loss(kind: str) -> None:
    """As Li et al. 2020 write it: half of mu times the squared distance from the round's model."""
    training = {"learning_rate": 0.2, "batch_size": 4, "number_of_epochs": 3, "shuffle": False}
    mine = Clients(dense, sizes=(10,), double=True, training={**training, "proximal_mu": 0.7})
    found = mine.one(kind=kind).state
    x, y = mine.data_of(0)
    torch.manual_seed(1)
    module = dense().double()
    began = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
    for start in (0, 4, 8) * 3:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(x[start : start + 4]), y[start : start + 4])
        apart = zip(module.parameters(), began, strict=True)
        (loss + 0.35 * sum(((now - then) ** 2).sum() for now, then in apart)).backward()
        optimizer.step()
    for name, array in state_of(module).items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-12)


@pytest.mark.parametrize("most", [0.3, 1.5, 100.0])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_clipped_as_pytorch_clips_them(kind: str, most: float) -> None:
    """Client by client, over all tensors of its model together."""
    training = {"learning_rate": 0.2, "batch_size": 4, "shuffle": False, "max_gradient_norm": most}
    sizes = (10, 7, 9)
    mine = Clients(dense, sizes=sizes, x=5 * numbers(26), double=True, training=training)
    clipped = []
    for client, found in mine.train(kind=kind).items():
        x, y = mine.data_of(client)
        torch.manual_seed(1)
        module = dense().double()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
        for start in range(0, len(y), 4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[start:][:4]), y[start:][:4]).backward()
            norm = nn.utils.clip_grad_norm_(module.parameters(), most)
            clipped.append(bool(norm > most))
            optimizer.step()
        for name, array in state_of(module).items():
            np.testing.assert_allclose(found.state[name], array, rtol=0, atol=1e-12)
    assert {0.3: all, 1.5: any, 100.0: lambda each: not any(each)}[most](clipped)
    assert not (most == 1.5 and all(clipped))


@pytest.mark.parametrize(("kind", "optimizer"), paired(KINDS, list(BY_NAME)))
def test_with_a_schedule_a_round_trains_at_its_own_rate(kind: str, optimizer: str) -> None:
    schedule = {"kind": "step", "gamma": 0.25, "every": 2}
    keys = {**BY_NAME[optimizer], "learning_rate": 0.04}
    scheduled, plain = clients(**keys, schedule=schedule), clients(**keys)
    slower = clients(**{**keys, "learning_rate": 0.01})
    for number, as_in in ((1, plain), (3, slower), (2, plain), (4, slower)):
        found = scheduled.train(kind=kind, number=number)
        expected = as_in.train(kind=kind, number=number)
        assert {i: each.bits for i, each in found.items()} == {
            i: each.bits for i, each in expected.items()
        }


@pytest.mark.parametrize("kind", KINDS)
def test_one_step_of_sgd_is_what_pytorch_computes(kind: str) -> None:
    training = {"learning_rate": 0.5, "batch_size": 100, "shuffle": False}
    mine = Clients(dense, sizes=(23,), double=True, training=training)
    found = mine.one(kind=kind)
    x, y = mine.data_of(0)
    torch.manual_seed(1)
    module = dense().double()
    loss = nn.functional.cross_entropy(module(x), y)
    loss.backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= 0.5 * parameter.grad
    for name, array in state_of(module).items():
        np.testing.assert_allclose(found.state[name], array, rtol=0, atol=1e-14)
    assert found.loss == pytest.approx(23 * float(loss.detach()), rel=1e-12)


@pytest.mark.parametrize(
    ("count", "batch", "epochs", "steps"),
    [
        pytest.param(1, 1, 1, 1, id="one sample"),
        pytest.param(1, 32, 3, 3, id="one sample, larger batches"),
        pytest.param(5, 1, 1, 5, id="batches of one"),
        pytest.param(9, 4, 2, 6, id="a smaller batch last"),
        pytest.param(8, 4, 1, 2, id="even batches"),
        pytest.param(0, 4, 2, 0, id="no samples"),
    ],
)
def test_steps_and_what_is_measured(count: int, batch: int, epochs: int, steps: int) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(FEATURES, CLASSES)
            self.register_buffer("steps", torch.tensor(0))

        def forward(self, x: Tensor) -> Tensor:
            self.steps.add_(1)
            return self.linear(x)

    mine = clients(Counting, (count,), batch_size=batch, number_of_epochs=epochs)
    after = mine.one()
    assert int(after.state["steps"]) == steps
    if not count:
        assert digest(after.state) == digest(mine.initial)
        assert after.loss == 0.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", OPTIMIZERS)
def test_a_client_without_samples_stays_what_it_is(kind: str, training: dict[str, Any]) -> None:
    mine = clients(dense, (5, 0, 0), **training)
    for after in (
        mine.one(1, kind=kind),
        mine.train([1, 2], kind=kind)[2],
        mine.train(kind=kind)[1],
    ):
        assert digest(after.state) == digest(mine.initial)
        assert after.loss == 0.0


@pytest.mark.parametrize("kind", ["sequential", "folded"])
def test_every_sample_is_seen_once_in_an_epoch(kind: str) -> None:
    seen: list[float] = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(1, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            if isinstance(x, Tensor) and not isinstance(x, torch.fx.Proxy):
                seen.extend(x[:, 0].tolist())
            return self.linear(x)

    x = np.arange(10, dtype=np.float32).reshape(10, 1)
    mine = Clients(Watching, x=x, sizes=(10,), training={"number_of_epochs": 2, "batch_size": 5})
    mine.one(kind=kind)
    first, second = seen[:10], seen[10:]
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second, "every epoch has its own order"
    assert first != sorted(first)


def test_a_model_that_changes_its_input_sees_fresh_samples_in_every_epoch() -> None:
    mine = clients(InPlace, shuffle=False, number_of_epochs=3, batch_size=100)
    before = mine.all_x.copy()
    mine.train()
    mine.train(kind="folded")
    assert np.array_equal(mine.all_x, before)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_the_last_epoch(kind: str) -> None:
    """Measured while training: that of an epoch that follows what the epochs before gave."""
    whole = Clients(dense, double=True, training={"number_of_epochs": 3, "shuffle": False})
    first = Clients(dense, double=True, training={"number_of_epochs": 2, "shuffle": False})
    third = Clients(dense, double=True, training={"number_of_epochs": 1, "shuffle": False})
    found, before = whole.train(kind=kind), first.train()
    for client, after in found.items():
        last = third.one(client, model=before[client].state)
        assert after.loss == pytest.approx(last.loss, rel=1e-9)


# -- parts of a model -------------------------------------------------------------------------


def test_a_buffer_that_is_replaced_is_part_of_what_comes_back() -> None:
    assert float(clients(Reassigning).one(SMALL).state["scale"]) == pytest.approx(1.5**2)


def test_batch_norm_buffers_move_in_training_and_not_in_evaluation() -> None:
    mine = clients(with_batch_norm)
    trained = mine.one(SMALL).state
    assert int(trained["1.num_batches_tracked"]) == 2
    assert trained["1.num_batches_tracked"].shape == ()
    assert not np.array_equal(trained["1.running_mean"], mine.initial["1.running_mean"])
    x, y = mine.data_of(OTHER)
    mine.resident.evaluate(x.numpy(), y.numpy(), 4)
    after = {name: tensor.numpy() for name, tensor in mine.resident.tensors().items()}
    assert digest(after) == digest(trained)


def test_batch_norm_never_gets_a_last_batch_of_one_sample() -> None:
    """It goes with the batch before; one sample by itself cannot be trained, and says so."""
    mine = clients(with_batch_norm, (9, 1))
    assert int(mine.one(0).state["1.num_batches_tracked"]) == 2
    with pytest.raises(ClientFailed, match="client_1 failed"):
        mine.one(1)


@pytest.mark.parametrize("kind", OF_PYTORCH)
@pytest.mark.parametrize("training", OPTIMIZERS)
def test_frozen_parameters_stay_and_the_rest_learns(kind: str, training: dict[str, Any]) -> None:
    def half_frozen() -> nn.Module:
        module = dense()
        module[0].requires_grad_(False)
        return module

    mine = clients(half_frozen, **{"weight_decay": 0.5} | training)
    state = mine.one(kind=kind).state
    for name, array in mine.initial.items():
        assert np.array_equal(state[name], array) == name.startswith("0."), name


class Unused(nn.Module):
    """Has parameters that the loss does not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(FEATURES, CLASSES), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


@pytest.mark.parametrize("kind", ["sequential", "mapped"])
@pytest.mark.parametrize("training", OPTIMIZERS)
def test_a_parameter_that_the_loss_does_not_reach_is_left_alone(
    kind: str, training: dict[str, Any]
) -> None:
    mine = clients(Unused, **training)
    assert np.array_equal(mine.one(kind=kind).state["unused.weight"], mine.initial["unused.weight"])


@pytest.mark.parametrize("kind", OF_PYTORCH)
def test_tied_weights_stay_tied(kind: str) -> None:
    mine = clients(Tied)
    state = mine.one(kind=kind).state
    assert np.array_equal(state["a.weight"], state["b.weight"])
    assert not np.array_equal(state["a.weight"], mine.initial["a.weight"])


def test_a_module_under_two_names_trains_under_both() -> None:
    mine = clients(Shared)
    state = mine.one().state
    assert set(state) == set(mine.initial)
    for name in ("running_mean", "running_var", "num_batches_tracked", "weight"):
        assert np.array_equal(state[f"first.{name}"], state[f"second.{name}"])
        assert not np.array_equal(state[f"first.{name}"], mine.initial[f"first.{name}"])


@pytest.mark.parametrize("kind", KINDS)
def test_float64_models_train_in_float64(kind: str) -> None:
    mine = Clients(dense, double=True)
    assert {a.dtype for a in mine.one(kind=kind).state.values()} == {np.dtype("f8")}
