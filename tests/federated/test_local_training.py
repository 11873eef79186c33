"""What a client computes depends on the model, its samples and (seed, round, id): nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedpilot.federated.config.schema import Training
from fedpilot.federated.core.partial import Tally
from fedpilot.federated.core.state import digest
from fedpilot.federated.engine.local_training import LocalTrainer
from fedpilot.federated.engine.modules import state_of, to_tensors

CPU = torch.device("cpu")
FEATURES, CLASSES = 5, 3


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))


class Reassigning(nn.Module):
    """Gives its buffer a new tensor in every step, instead of changing it in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.scale = self.scale * 1.5
        return self.linear(x) * self.scale


class Remembering(nn.Module):
    """Has a buffer that is not part of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("seen", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.add_(1.0)
        return self.linear(x) * self.seen


class InPlace(nn.Module):
    """Changes the samples that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mul_(0.5))


MODELS = {
    "dense": dense,
    "batch norm": with_batch_norm,
    "dropout": with_dropout,
    "buffers that are replaced": Reassigning,
    "buffers that are not saved": Remembering,
    "inputs that are changed in place": InPlace,
}


def samples(seed: int, count: int = 23) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(count, FEATURES)).astype(np.float32))
    return x, torch.from_numpy(rng.integers(0, CLASSES, size=count))


class Client:
    """A trainer with the global model that every client starts from."""

    def __init__(self, make: Any = dense, **training: Any) -> None:
        torch.manual_seed(1)
        module = make()
        self.initial = state_of(module)
        self.tensors = to_tensors(self.initial, CPU)
        self.trainer = LocalTrainer(
            module, Training(**({"batch_size": 4} | training)), seed=7, device=CPU
        )

    def train(
        self, client_id: str = "client_1", data: int = 1, number: int = 1, count: int = 23
    ) -> tuple[str, list[int]]:
        self.trainer.load(self.tensors)
        tally = self.trainer.train(client_id, *samples(data, count), number)
        return digest(self.trainer.state()), tally.to_json()


OPTIMIZERS = [
    pytest.param({"optimizer": "sgd"}, id="sgd"),
    pytest.param({"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01}, id="momentum"),
    pytest.param({"optimizer": "adam", "learning_rate": 0.01}, id="adam"),
    pytest.param({"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1}, id="adamw"),
]


@pytest.mark.parametrize("training", OPTIMIZERS)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_the_result_does_not_depend_on_who_trained_before(
    make: Any, training: dict[str, Any]
) -> None:
    alone = Client(make, **training).train("client_2", data=2)
    after = Client(make, **training)
    after.train("client_1", data=1)
    after.train("client_3", data=3, number=5, count=8)
    assert after.train("client_2", data=2) == alone
    assert after.train("client_2", data=2) == alone, "nor on having trained itself"


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_loading_a_model_gives_that_model_bit_for_bit(make: Any) -> None:
    client = Client(make)
    client.train()
    client.trainer.load(client.tensors)
    assert digest(client.trainer.state()) == digest(client.initial)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_training_changes_what_it_returns(make: Any) -> None:
    client = Client(make)
    assert client.train()[0] != digest(client.initial)


def test_what_other_generators_drew_does_not_matter() -> None:
    first = Client(with_dropout).train()
    torch.manual_seed(99)
    np.random.default_rng(1).normal()
    torch.rand(100)
    client = Client(with_dropout)
    torch.rand(100)
    assert client.train() == first


def test_a_buffer_that_is_replaced_is_part_of_what_comes_back() -> None:
    client = Client(Reassigning)
    client.train(count=8)
    assert float(client.trainer.state()["scale"]) == pytest.approx(1.5**2)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"client_id": "client_9"}, id="another client"),
        pytest.param({"number": 2}, id="another round"),
        pytest.param({"data": 5}, id="other samples"),
    ],
)
def test_whatever_ought_to_matter_does(other: dict[str, Any]) -> None:
    assert Client(with_dropout).train(**other) != Client(with_dropout).train()


def test_without_shuffling_the_round_matters_only_to_dropout() -> None:
    plain = Client(shuffle=False)
    assert plain.train(number=1) == plain.train(number=2)
    dropping = Client(with_dropout, shuffle=False)
    assert dropping.train(number=1) != dropping.train(number=2)


def test_a_model_that_changes_its_input_sees_fresh_samples_in_every_epoch() -> None:
    client = Client(InPlace, shuffle=False, number_of_epochs=3, batch_size=100)
    x, y = samples(1)
    before = x.clone()
    client.trainer.load(client.tensors)
    client.trainer.train("client_1", x, y, 1)
    assert torch.equal(x, before)


def test_batch_norm_buffers_move_in_training_and_not_in_evaluation() -> None:
    client = Client(with_batch_norm)
    client.train(count=8)
    trained = {n: a.copy() for n, a in client.trainer.state().items()}
    assert int(trained["1.num_batches_tracked"]) == 2
    assert trained["1.num_batches_tracked"].shape == ()
    assert not np.array_equal(trained["1.running_mean"], client.initial["1.running_mean"])
    x, y = samples(3)
    client.trainer.evaluate(x.numpy(), y.numpy(), 4)
    assert digest(client.trainer.state()) == digest(trained)


def test_frozen_parameters_stay_and_the_rest_learns() -> None:
    def half_frozen() -> nn.Module:
        module = dense()
        module[0].requires_grad_(False)
        return module

    client = Client(half_frozen, weight_decay=0.5)
    client.train()
    state = client.trainer.state()
    for name, array in client.initial.items():
        assert np.array_equal(state[name], array) == name.startswith("0."), name


@pytest.mark.parametrize("training", OPTIMIZERS)
def test_a_parameter_that_the_loss_does_not_reach_is_left_alone(training: dict[str, Any]) -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(FEATURES, CLASSES), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    client = Client(Unused, **training)
    client.train()
    assert np.array_equal(client.trainer.state()["unused.weight"], client.initial["unused.weight"])


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x))

    client = Client(Tied)
    client.train()
    state = client.trainer.state()
    assert np.array_equal(state["a.weight"], state["b.weight"])
    assert not np.array_equal(state["a.weight"], client.initial["a.weight"])


@pytest.mark.parametrize("training", OPTIMIZERS)
def test_training_is_what_pytorchs_own_optimizer_does(training: dict[str, Any]) -> None:
    settings = {"learning_rate": 0.1, "batch_size": 4, "number_of_epochs": 3, **training}
    client = Client(shuffle=False, **settings)
    client.train(count=10)
    x, y = samples(1, 10)
    torch.manual_seed(1)
    module = dense()
    options = {"lr": settings["learning_rate"], "weight_decay": settings.get("weight_decay", 0.0)}
    if settings["optimizer"] == "sgd":
        options["momentum"] = settings.get("momentum", 0.0)
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    optimizer = kinds[settings["optimizer"]](module.parameters(), **options)
    for _ in range(3):
        for start in range(0, 10, 4):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x[start : start + 4]), y[start : start + 4])
            loss.backward()
            optimizer.step()
    assert digest(client.trainer.state()) == digest(state_of(module))


def test_a_module_under_two_names_trains_under_both() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.BatchNorm1d(FEATURES)
            self.second = self.first
            self.head = nn.Linear(FEATURES, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.second(self.first(x)))

    alone = Client(Shared).train("client_2", data=2)
    client = Client(Shared)
    client.train("client_1", data=1)
    assert client.train("client_2", data=2) == alone
    state = client.trainer.state()
    assert set(state) == set(client.initial)
    for name in ("running_mean", "running_var", "num_batches_tracked", "weight"):
        assert np.array_equal(state[f"first.{name}"], state[f"second.{name}"])
        assert not np.array_equal(state[f"first.{name}"], client.initial[f"first.{name}"])


def test_one_step_of_sgd_is_what_pytorch_computes() -> None:
    client = Client(learning_rate=0.5, batch_size=100, shuffle=False)
    _, (count, _, _, _) = client.train()
    x, y = samples(1)
    torch.manual_seed(1)
    module = dense()
    loss = nn.functional.cross_entropy(module(x), y)
    loss.backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= 0.5 * parameter.grad
    assert digest(client.trainer.state()) == digest(state_of(module))
    assert count == len(y)


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

    client = Client(Counting, batch_size=batch, number_of_epochs=epochs)
    state, tally = client.train(count=count)
    assert int(client.trainer.state()["steps"]) == steps
    assert tally[0] == count, "samples are those of one epoch"
    if not count:
        assert state == digest(client.initial)


def test_every_sample_is_seen_once_in_an_epoch() -> None:
    seen: list[float] = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(1, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            seen.extend(x[:, 0].tolist())
            return self.linear(x)

    client = Client(Watching, number_of_epochs=2)
    x = torch.arange(10.0).reshape(10, 1)
    client.trainer.load(client.tensors)
    client.trainer.train("client_1", x, torch.zeros(10, dtype=torch.int64), 1)
    first, second = seen[:10], seen[10:]
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second, "every epoch has its own order"
    assert first != sorted(first)


def test_a_loss_that_explodes_is_counted_as_not_finite() -> None:
    client = Client(learning_rate=1e30, number_of_epochs=4)
    _, tally = client.train()
    assert math.isnan(Tally.from_json(tally).mean_loss)
    client.train()
    fresh = Client()
    assert client.trainer.load(client.tensors) is None
    assert digest(client.trainer.state()) == digest(fresh.initial), "and leaves no trace"


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_evaluation_counts_samples_right_answers_and_losses(batch: int) -> None:
    client = Client()
    client.trainer.load(client.tensors)
    x, y = samples(4)
    tally = client.trainer.evaluate(x.numpy(), y.numpy(), batch)
    torch.manual_seed(1)
    with torch.no_grad():
        outputs = dense()(x)
    assert tally.samples == len(y)
    assert tally.correct == int((outputs.argmax(1) == y).sum())
    assert tally.mean_loss == pytest.approx(
        float(nn.functional.cross_entropy(outputs, y)), rel=1e-5
    )


def test_evaluation_in_parts_that_end_with_a_batch_gives_the_same_sums() -> None:
    client = Client(with_dropout)
    client.trainer.load(client.tensors)
    x, y = (t.numpy() for t in samples(4, 40))
    whole = client.trainer.evaluate(x, y, 8).to_json()
    parts = Tally()
    for start, stop in ((16, 40), (0, 8), (8, 16)):
        parts.merge(client.trainer.evaluate(x[start:stop], y[start:stop], 8))
    assert parts.to_json() == whole


def test_evaluation_leaves_read_only_samples_as_they_are() -> None:
    client = Client(InPlace)
    client.trainer.load(client.tensors)
    x, y = (t.numpy() for t in samples(4))
    x.setflags(write=False)
    before = x.copy()
    client.trainer.evaluate(x, y, 4)
    assert np.array_equal(x, before)


def test_float64_models_train_in_float64() -> None:
    client = Client(lambda: dense().double())
    x, y = samples(1)
    client.trainer.load(client.tensors)
    client.trainer.train("client_1", x.double(), y, 1)
    assert {a.dtype for a in client.trainer.state().values()} == {np.dtype("f8")}
