"""A compiled kernel gives what training one by one gives, or the module is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn import functional

from clients import CLASSES, CPU, FEATURES, After, Clients, dense, labels, mean_of, numbers, tokens
from fedpilot.federated import models
from fedpilot.federated.core.execution.facts import Execution, Kind
from fedpilot.federated.core.state import Array, digest
from fedpilot.federated.core.sums.partial import grid
from fedpilot.federated.engine.stacking import NotStackable
from fedpilot.federated.engine.sums.summing import RunningSum
from fedpilot.federated.engine.trainers.trainer_factory import TrainerFactory
from fedpilot.federated.engine.trainers.trainers import Trainers
from fedpilot.federated.engine.training.modules import roles_of, state_of
from fedpilot.federated.engine.training.samples import Samples
from fedpilot.federated.errors import ExecutionRefused

SIZES = (9, 3, 0, 6, 1, 4)
TOTAL = sum(SIZES)
IMAGE = (2, 3, 4)
PIXELS = 24
COMPILED = Kind.COMPILED

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "learning_rate": 0.05},
    "momentum": {
        "optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.01
    },
    "only momentum": {"optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.5},
    "only weight decay": {"optimizer": "sgd", "learning_rate": 0.05, "weight_decay": 0.1},
    "adam": {"optimizer": "adam", "learning_rate": 0.01},
    "adam with weight decay": {"optimizer": "adam", "learning_rate": 0.01, "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1},
}  # fmt: skip

Make = Callable[[], nn.Module]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def builtin(name: str, shape: tuple[int, ...], **options: Any) -> Make:
    return lambda: models.build(name, options, shape, CLASSES)


def layers(*made: Make) -> Make:
    return lambda: nn.Sequential(*(make() for make in made))


def linear(of: int = FEATURES, to: int = CLASSES, **options: Any) -> Make:
    return lambda: nn.Linear(of, to, **options)


class Code(nn.Module):
    """Parts by name, and a forward pass over them."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def code(run: Callable[[Any, Tensor], Tensor], **parts: Make) -> Make:
    return lambda: Code(run, **{name: make() for name, make in parts.items()})


@dataclass(frozen=True)
class Case:
    """A model and its samples."""

    make: Make
    x: Callable[[], Array] = lambda: numbers(TOTAL)

    def clients(self, *, double: bool = True, **training: Any) -> Clients:
        return Clients(self.make, x=self.x(), sizes=SIZES, training=training, double=double)


def images() -> Array:
    return numbers(TOTAL, IMAGE)


CASES = {
    "logistic regression": Case(builtin("logistic_regression", (FEATURES,))),
    "logistic regression on images": Case(builtin("logistic_regression", IMAGE), images),
    "mlp": Case(builtin("mlp", (FEATURES,), hidden=[8, 6])),
    "mlp on images": Case(builtin("mlp", IMAGE, hidden=[8]), images),
    "a layer by itself": Case(linear()),
    "a layer by itself without bias": Case(linear(bias=False)),
    "three layers of odd widths": Case(
        layers(linear(FEATURES, 13), nn.ReLU, linear(13, 7), nn.ReLU, linear(7))
    ),
    "widths of one": Case(layers(linear(FEATURES, 1), nn.Tanh, linear(1, 1), nn.Tanh, linear(1))),
    "widths beyond a vector": Case(
        layers(linear(67, 37), nn.ReLU, linear(37, 19), nn.Tanh, linear(19)),
        lambda: numbers(TOTAL, (67,)),
    ),
    "outputs wider than all before": Case(layers(linear(FEATURES, 2), nn.Tanh, linear(2, 41))),
    "no bias": Case(
        layers(linear(FEATURES, 6, bias=False), nn.ReLU, linear(6, bias=False))
    ),
    "a bias behind, none before": Case(
        layers(linear(FEATURES, 6, bias=False), nn.ReLU, linear(6, 5), nn.ReLU,
               linear(5, bias=False))
    ),
    "tanh": Case(layers(linear(FEATURES, 7), nn.Tanh, linear(7))),
    "sigmoid": Case(layers(linear(FEATURES, 7), nn.Sigmoid, linear(7))),
    "nothing between two layers": Case(layers(linear(FEATURES, 7), linear(7))),
    "relu in place": Case(layers(linear(FEATURES, 7), lambda: nn.ReLU(inplace=True), linear(7))),
    "one activation under two names": Case(
        lambda: (lambda relu: nn.Sequential(
            nn.Linear(FEATURES, 6), relu, nn.Linear(6, 4), relu, nn.Linear(4, CLASSES)
        ))(nn.ReLU())
    ),
    "relu by functional": Case(
        code(lambda m, x: m.b(functional.relu(m.a(x))), a=linear(FEATURES, 7), b=linear(7))
    ),
    "relu by torch": Case(
        code(lambda m, x: m.b(torch.relu(m.a(x))), a=linear(FEATURES, 7), b=linear(7))
    ),
    "relu by a method": Case(
        code(lambda m, x: m.b(m.a(x).relu()), a=linear(FEATURES, 7), b=linear(7))
    ),
    "tanh and sigmoid by functional": Case(
        code(lambda m, x: m.c(torch.sigmoid(m.b(functional.tanh(m.a(x))))),
             a=linear(FEATURES, 7), b=linear(7, 4), c=linear(4))
    ),
    "weights in another order than they are used": Case(
        code(lambda m, x: m.a(m.b(x).relu()), a=linear(7), b=linear(FEATURES, 7))
    ),
    "modules inside of modules": Case(
        code(lambda m, x: m.head(m.body(x)), head=linear(6),
             body=layers(linear(FEATURES, 6), nn.ReLU, layers(linear(6, 6), nn.Tanh)))
    ),
    "nn.Flatten": Case(layers(nn.Flatten, linear(PIXELS, 6), nn.ReLU, linear(6)), images),
    "torch.flatten": Case(
        code(lambda m, x: m.a(torch.flatten(x, 1)), a=linear(PIXELS)), images
    ),
    "flatten by a method": Case(
        code(lambda m, x: m.a(x.flatten(start_dim=1)), a=linear(PIXELS)), images
    ),
    "view by size": Case(
        code(lambda m, x: m.a(x.view(x.size(0), -1)), a=linear(PIXELS)), images
    ),
    "view by shape": Case(
        code(lambda m, x: m.a(x.view(x.shape[0], -1)), a=linear(PIXELS)), images
    ),
    "reshape to a known width": Case(
        code(lambda m, x: m.a(x.reshape(-1, PIXELS)), a=linear(PIXELS)), images
    ),
    "Identity": Case(
        layers(nn.Identity, linear(FEATURES, 6), nn.Identity, nn.ReLU, linear(6), nn.Identity)
    ),
    "Dropout(0)": Case(
        layers(lambda: nn.Dropout(0.0), linear(FEATURES, 6), nn.ReLU, lambda: nn.Dropout(0.0),
               linear(6))
    ),
    "samples that do not lie side by side": Case(
        linear(), lambda: numbers(TOTAL, (2 * FEATURES,))[:, ::2]
    ),
    "images that lie the other way round": Case(
        builtin("mlp", IMAGE, hidden=[6]), lambda: numbers(TOTAL, IMAGE[::-1]).transpose(0, 3, 2, 1)
    ),
}  # fmt: skip


def apart(one: Mapping[int, After], other: Mapping[int, After]) -> float:
    """The largest difference of any weight or loss."""
    assert one.keys() == other.keys()
    weights = [
        np.abs(one[client].state[name] - other[client].state[name]).max(initial=0.0)
        for client in one
        for name in one[client].state
    ]
    return float(max(*weights, *(abs(one[c].loss - other[c].loss) for c in one)))


# -- the same as one by one -------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_it_is_what_training_one_by_one_gives(case: Case, optimizer: str) -> None:
    """In float64, over two rounds of unequal clients: some below a batch, one without samples."""
    clients = case.clients(number_of_epochs=2, **OPTIMIZERS[optimizer])
    alone = clients.train()
    assert apart(alone, clients.train(kind=COMPILED)) < 1e-9
    model = mean_of(alone, SIZES)
    assert max(np.abs(model[n] - clients.initial[n]).max() for n in model) > 1e-4, "they learned"
    alone = clients.train(model=model, number=2)
    assert apart(alone, clients.train(kind=COMPILED, model=model, number=2)) < 1e-9


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("epochs", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 3, 4, 5, 9, 64])
def test_whatever_the_size_of_a_batch(optimizer: str, epochs: int, batch: int) -> None:
    training = {"number_of_epochs": epochs, **OPTIMIZERS[optimizer], "batch_size": batch}
    clients = CASES["three layers of odd widths"].clients(**training)
    assert apart(clients.train(), clients.train(kind=COMPILED)) < 1e-9


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.lists(st.integers(0, 12), min_size=1, max_size=5),
    st.integers(1, 13),
    st.sampled_from(sorted(OPTIMIZERS)),
)
def test_whatever_the_widths_and_sizes(
    widths: list[int], sizes: list[int], batch: int, optimizer: str
) -> None:
    of, *hidden = widths
    total = sum(sizes) or 1  # a data set is never empty
    clients = Clients(
        builtin("mlp", (of,), hidden=hidden),
        x=numbers(total, (of,)),
        y=labels(total),
        sizes=sizes,
        training={"batch_size": batch, **OPTIMIZERS[optimizer]},
        double=True,
    )
    assert apart(clients.train(), clients.train(kind=COMPILED)) < 1e-9


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_in_float32_they_differ_by_rounding(optimizer: str) -> None:
    clients = CASES["mlp"].clients(double=False, number_of_epochs=3, **OPTIMIZERS[optimizer])
    alone, compiled = clients.train(), clients.train(kind=COMPILED)
    assert {array.dtype for after in compiled.values() for array in after.state.values()} == {
        np.dtype("f4")
    }
    assert apart(alone, compiled) < 1e-5


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_in_float32_it_rounds_no_worse_than_one_by_one(optimizer: str) -> None:
    """Measured from float64; what is left of one (Adam's 0.999) must not be taken from itself."""
    training = {"number_of_epochs": 10, "shuffle": False, **OPTIMIZERS[optimizer]}
    made = [
        Clients(dense, x=numbers(90), sizes=(30,) * 3, training=training, double=double)
        for double in (False, True)
    ]
    narrow, wide = made
    true = wide.train(model={n: array.astype(np.float64) for n, array in narrow.initial.items()})
    errors = [
        float(
            np.median(
                np.concatenate(
                    [
                        np.abs(after.state[name] - true[client].state[name]).ravel()
                        for client, after in narrow.train(kind=kind).items()
                        for name in after.state
                    ]
                )
            )
        )
        for kind in ("sequential", COMPILED)
    ]
    assert errors[1] < 2 * errors[0]


def test_samples_stay_in_their_order_where_they_are_not_shuffled() -> None:
    clients = CASES["mlp"].clients(shuffle=False, number_of_epochs=2, batch_size=2)
    assert apart(clients.train(), clients.train(kind=COMPILED)) < 1e-9


def test_a_client_without_samples_stays_where_it_began() -> None:
    clients = CASES["mlp"].clients(**OPTIMIZERS["adamw"])
    empty = SIZES.index(0)
    for asked in ([empty], [0, empty], [empty, 0]):
        found = clients.train(asked, kind=COMPILED)[empty]
        assert digest(found.state) == digest(clients.initial)
        assert found.loss == 0.0


@pytest.mark.parametrize("kind", ["sequential", COMPILED])
def test_a_worker_without_samples_trains_clients_that_have_none(kind: str) -> None:
    clients = Clients(x=numbers(0), y=labels(0), sizes=(0, 0))
    for after in clients.train(kind=kind).values():
        assert digest(after.state) == digest(clients.initial)


def test_samples_are_only_read() -> None:
    """Those of Ray's object store lie in memory that cannot be written."""
    x, y = numbers(TOTAL), labels(TOTAL)
    expected = {c: a.bits for c, a in Clients(x=x, y=y, sizes=SIZES).train(kind=COMPILED).items()}
    x, y = x.copy(), y.copy()
    x.setflags(write=False)
    y.setflags(write=False)
    clients = Clients(x=x, y=y, sizes=SIZES)
    assert {c: after.bits for c, after in clients.train(kind=COMPILED).items()} == expected


# -- mates ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["mlp", "mlp on images", "a layer by itself", "three layers of odd widths", "sigmoid",
     "widths beyond a vector"],
)  # fmt: skip
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_clients_bits_do_not_depend_on_its_mates(name: str, optimizer: str) -> None:
    """Nor on its place among them, nor on how many there could be."""
    training = {"number_of_epochs": 2, **OPTIMIZERS[optimizer]}
    clients = CASES[name].clients(double=False, **training)
    everybody = clients.everybody
    alone = {c: clients.one(c, kind=COMPILED, chunk_size=1).bits for c in everybody}

    @settings(max_examples=12, deadline=None)
    @given(
        st.permutations(everybody), st.integers(1, len(everybody)), st.integers(1, len(everybody))
    )
    def whoever_they_are(order: list[int], some: int, chunk_size: int) -> None:
        found = clients.train(order[:some], kind=COMPILED, chunk_size=chunk_size)
        assert {client: after.bits for client, after in found.items()} == {
            client: alone[client] for client in order[:some]
        }

    whoever_they_are()


def test_nor_on_what_the_worker_trained_before() -> None:
    """Not even where that ended in what is no number: nothing of it is left."""
    case = CASES["three layers of odd widths"]
    clients = case.clients(double=False, number_of_epochs=2, **OPTIMIZERS["adam"])
    expected = {client: after.bits for client, after in clients.train(kind=COMPILED).items()}
    spoilt = {name: np.full_like(array, np.inf) for name, array in clients.initial.items()}
    clients.train(kind=COMPILED, model=spoilt)
    assert {c: after.bits for c, after in clients.train(kind=COMPILED).items()} == expected


def test_a_batch_larger_than_all_clients_costs_nothing() -> None:
    """Nor does it change a bit: such a batch is a client's whole data, whatever its size."""
    whole = CASES["mlp"].clients(double=False, batch_size=max(SIZES), number_of_epochs=2)
    expected = {client: after.bits for client, after in whole.train(kind=COMPILED).items()}
    huge = CASES["mlp"].clients(double=False, batch_size=1 << 40, number_of_epochs=2)
    assert {c: after.bits for c, after in huge.train(kind=COMPILED).items()} == expected


# -- what is no number ------------------------------------------------------------------------


@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("make", [dense, CASES["three layers of odd widths"].make, linear()])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_who_diverges_is_refused_by_the_sum(make: Make, optimizer: str, double: bool) -> None:
    """ReLU must not make zero of what is no number, as `max(0, x)` would."""
    diverging = {**OPTIMIZERS[optimizer], "learning_rate": 1e300 if double else 1e30}
    training = {"number_of_epochs": 4, "batch_size": 2, **diverging}
    x = 1e20 * numbers(TOTAL)
    clients = Clients(make, x=x, sizes=SIZES, training=training, double=double)
    roles = roles_of(clients.module, keep_buffers=False)
    tensors = clients.tensors()
    total = RunningSum(tensors, roles, clients.partition.client_id)
    total.begin(tensors, grid(clients.initial, roles))
    trainer = clients.trainers.get(Execution(COMPILED, 64))
    chunk = clients.samples.chunk(clients.everybody)
    for trained in trainer.train(chunk, 1, tensors, {}):
        total.add(chunk.clients, trained.tensors, chunk.sizes, trained.losses)
    alone = clients.train()
    lost = {
        clients.partition.client_id(client)
        for client, after in alone.items()
        if not all(np.isfinite(array).all() for array in after.state.values())
        or not np.isfinite(after.loss)
    }
    assert set(total.take().refused) == lost
    assert lost, "some diverge"


@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_what_saturates_stays_a_number(name: str, optimizer: str, double: bool) -> None:
    """Its hidden values stay in bounds, whatever the weights, as they do one by one."""
    training = {"batch_size": 2, **OPTIMIZERS[optimizer], "learning_rate": 1e30}
    x = 1e20 * numbers(TOTAL)
    clients = Clients(CASES[name].make, x=x, sizes=SIZES, training=training, double=double)
    for found in (clients.train(), clients.train(kind=COMPILED)):
        for after in found.values():
            assert np.isfinite(after.loss)
            assert all(np.isfinite(array).all() for array in after.state.values())


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", range(4), ids=["weight", "bias", "last weight", "last bias"])
def test_what_begins_as_no_number_ends_as_none(wrong: float, at: int) -> None:
    clients = Clients(sizes=SIZES)
    model = {name: array.copy() for name, array in clients.initial.items()}
    model[sorted(model)[at]].flat[1] = wrong
    for client, after in clients.train(kind=COMPILED, model=model).items():
        finite = all(np.isfinite(array).all() for array in after.state.values())
        assert not finite, client


def test_large_logits_are_no_reason_to_overflow() -> None:
    x = 1e4 * numbers(TOTAL)
    clients = Clients(linear(), x=x, sizes=SIZES, training={"learning_rate": 1e-9}, double=True)
    alone, compiled = clients.train(), clients.train(kind=COMPILED)
    assert apart(alone, compiled) < 1e-6
    assert all(np.isfinite(after.loss) for after in compiled.values())


# -- what is refused --------------------------------------------------------------------------


def tied() -> nn.Module:
    module = nn.Sequential(linear(FEATURES, FEATURES)(), nn.Tanh(), linear(FEATURES, FEATURES)())
    module[2].weight = module[0].weight
    return module


def under_two_names() -> nn.Module:
    same = nn.Linear(FEATURES, FEATURES)
    return nn.Sequential(same, nn.ReLU(), same, nn.ReLU(), linear()())


def changed(change: Callable[[nn.Module], object]) -> Make:
    def make() -> nn.Module:
        module = dense()
        change(module)
        return module

    return make


class Doubling(nn.Linear):
    """Computes otherwise than its base."""

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * super().forward(x)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.linear(x)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Any:
        out = self.linear(x)
        return out, out


IMAGES = numbers(TOTAL, IMAGE)
NO_PART = "is no part of a chain of dense layers"
NO_CHAIN = "it is more than one layer after the other"
WEIGHTS = "it has more weights than those of its chain, or shares some"
WHOLE = "(Linear) is not fed whole samples in one dimension"

REFUSED: dict[str, tuple[Make, Array | None, str]] = {
    "a convolution": (layers(lambda: nn.Conv2d(2, 3, 3), nn.Flatten, linear(6)), IMAGES, NO_PART),
    "batch norm": (
        layers(linear(FEATURES, 4), lambda: nn.BatchNorm1d(4), linear(4)), None, f"1 {NO_PART}",
    ),
    "layer norm": (
        layers(linear(FEATURES, 4), lambda: nn.LayerNorm(4), linear(4)), None, f"1 {NO_PART}",
    ),
    "dropout": (
        layers(linear(FEATURES, 4), lambda: nn.Dropout(0.5), linear(4)), None, f"1 {NO_PART}",
    ),
    "functional dropout": (
        code(lambda m, x: m.a(functional.dropout(x, 0.5, m.training)), a=linear()), None,
        f"dropout {NO_PART}",
    ),
    "another activation": (
        layers(linear(FEATURES, 4), nn.GELU, linear(4)), None, f"1 {NO_PART}",
    ),
    "a way around": (
        code(lambda m, x: m.b(x + m.a(x)), a=linear(FEATURES, FEATURES), b=linear()), None,
        NO_CHAIN,
    ),
    "a way around an activation": (
        code(lambda m, x: m.b(m.a(x) + functional.relu(m.a(x))), a=linear(FEATURES, 4),
             b=linear(4)), None, NO_CHAIN,
    ),
    "a product with itself": (
        code(lambda m, x: m.b((lambda h: h * h)(m.a(x))), a=linear(FEATURES, 4), b=linear(4)),
        None, f"mul {NO_PART}",
    ),
    "a step whose outcome is not used": (
        code(lambda m, x: (m.a(x), m.b(x))[1], a=linear(), b=linear()), None, NO_CHAIN,
    ),
    "a last step whose outcome is not used": (
        code(lambda m, x: (m.a(x), m.a(x).relu())[0], a=linear()), None, NO_CHAIN,
    ),
    "an activation in place of what is used": (
        code(lambda m, x: (lambda h: (functional.relu(h, inplace=True), m.b(h))[1])(m.a(x)),
             a=linear(FEATURES, 4), b=linear(4)), None, NO_CHAIN,
    ),
    "no softmax is needed": (
        code(lambda m, x: m.a(x).softmax(1), a=linear()), None, f"softmax {NO_PART}",
    ),
    "arithmetic on the inputs": (
        code(lambda m, x: m.a(x - x.mean(0)), a=linear()), None, NO_CHAIN,
    ),
    "arithmetic on the outputs": (
        code(lambda m, x: 3.0 * m.a(x), a=linear()), None, NO_CHAIN,
    ),
    "an extra by shape": (
        code(lambda m, x: m.a(x) * x.shape[0], a=linear()), None, f"mul {NO_PART}",
    ),
    "columns of the inputs": (
        code(lambda m, x: m.a(x[:, :3]), a=linear(3)), None, f"getitem {NO_PART}",
    ),
    "a layer of its own kind": (
        code(lambda m, x: m.a(x), a=lambda: Doubling(FEATURES, CLASSES)), None, NO_CHAIN,
    ),
    "a layer of its own kind by itself": (
        lambda: Doubling(FEATURES, CLASSES), None, NO_CHAIN,
    ),
    "decisions on values": (
        code(lambda m, x: m.a(x) if float(x.sum()) > 0 else -m.a(x), a=linear()), None,
        "its code cannot be traced",
    ),
    "two inputs": (TwoInputs, None, NO_CHAIN),
    "two outputs": (Pair, None, NO_CHAIN),
    "tied weights": (tied, None, WEIGHTS),
    "a layer under two names": (under_two_names, None, WEIGHTS),
    "a layer called twice": (
        code(lambda m, x: m.b(m.a(m.a(x).tanh())), a=linear(FEATURES, FEATURES), b=linear()),
        None, WEIGHTS,
    ),
    "a layer that is never called": (
        code(lambda m, x: m.used(x), used=linear(), unused=linear(2, 2)), None, WEIGHTS,
    ),
    "a parameter of its own": (
        changed(lambda m: m.register_parameter("own", nn.Parameter(torch.ones(2)))), None, WEIGHTS,
    ),
    "a buffer": (changed(lambda m: m.register_buffer("seen", torch.ones(()))), None, WEIGHTS),
    "a buffer that is not saved": (
        changed(lambda m: m.register_buffer("seen", torch.ones(()), persistent=False)), None,
        WEIGHTS,
    ),
    "a buffer of a layer": (
        changed(lambda m: m[0].register_buffer("seen", torch.ones(()))), None, WEIGHTS,
    ),
    "a frozen layer": (changed(lambda m: m[0].requires_grad_(False)), None, "are frozen"),
    "a frozen bias": (changed(lambda m: m[2].bias.requires_grad_(False)), None, "are frozen"),
    "weights of two types": (changed(lambda m: m[2].double()), None, "not all of one type"),
    "weights of half precision": (changed(lambda m: m.bfloat16()), None, "float32 or float64"),
    "a hook of a layer": (
        changed(lambda m: m[0].register_forward_hook(lambda *_: None)), None, "it has hooks",
    ),
    "a hook of the whole": (
        changed(lambda m: m.register_forward_pre_hook(lambda *_: None)), None, "it has hooks",
    ),
    "a hook backwards": (
        changed(lambda m: m[1].register_full_backward_hook(lambda *_: None)), None, "it has hooks",
    ),
    "a hook of a weight": (
        changed(lambda m: m[0].weight.register_hook(lambda slope: 2 * slope)), None, "it has hooks",
    ),
    "a forward pass put in the place of a layer's": (
        changed(lambda m: setattr(m[1], "forward", torch.tanh)), None, "it has hooks",
    ),
    "a forward pass put in the place of the whole's": (
        changed(lambda m: setattr(m, "forward", lambda x: 2 * nn.Sequential.forward(m, x))), None,
        "it has hooks",
    ),
    "weights by parametrization": (
        changed(lambda m: nn.utils.parametrizations.weight_norm(m[0])), None, f"0 {NO_PART}",
    ),
    "an activation first": (
        layers(nn.ReLU, linear()), None, "0 follows no linear layer",
    ),
    "an activation last": (
        layers(linear(), nn.ReLU), None, "its last step is no linear layer",
    ),
    "two activations": (
        layers(linear(FEATURES, 4), nn.ReLU, nn.Tanh, linear(4)), None, "2 follows no linear",
    ),
    "no layer at all": (nn.Flatten, None, "its last step is no linear layer"),
    "images that are not flattened": (layers(linear(4), nn.Flatten), IMAGES, f"0 {WHOLE}"),
    "flattened in part": (
        layers(lambda: nn.Flatten(1, 2), linear(4), nn.Flatten), IMAGES, f"1 {WHOLE}",
    ),
    "flattened over samples": (
        code(lambda m, x: m.a(x.view(-1, 12)), a=linear(12)), IMAGES, f"a {WHOLE}",
    ),
    "tokens": (linear(), tokens(TOTAL, FEATURES, 3), "samples are torch.int64, weights"),
    "samples of another type": (
        linear(), numbers(TOTAL).astype(np.float64), "samples are torch.float64, weights",
    ),
}  # fmt: skip


def refusal(make: Make, x: Array | None = None, y: Array | None = None) -> str:
    """Why a trainer is not made, by samples that its module need not be able to take."""
    base = Clients(sizes=SIZES)
    given_x = numbers(TOTAL) if x is None else x
    samples = Samples(
        given_x, base.all_y if y is None else y, base.partition, base.settings, seed=7, device=CPU
    )
    torch.manual_seed(1)
    base.resident.module = make()
    trainers = Trainers(
        TrainerFactory(
            resident=base.resident, samples=samples, training=base.settings, seed=7, device=CPU
        )
    )
    with pytest.raises(NotStackable) as caught:
        trainers.get(Execution(COMPILED, 4))
    return str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_chain_is_refused_with_words(name: str) -> None:
    make, x, words = REFUSED[name]
    assert words in refusal(make, x)


@pytest.mark.parametrize("label", [-1, -100, CLASSES, 1 << 40])
def test_labels_that_would_be_read_out_of_bounds_are_refused(label: int) -> None:
    y = labels(TOTAL)
    y[3] = label
    assert refusal(dense, y=y) == f"some labels are not in 0 to {CLASSES - 1}"


@pytest.mark.parametrize("own", ["loss", "update"])
def test_training_of_ones_own_is_not_compiled(own: str) -> None:
    clients = Clients(update=(lambda _client: None) if own == "update" else None)
    if own == "loss":
        clients.resident.loss = lambda outputs, y: functional.cross_entropy(outputs, y)
    with pytest.raises(NotStackable, match="one client"):
        clients.trainers.get(Execution(COMPILED, 4))


def test_the_module_itself_is_left_as_it_is() -> None:
    """Also where it is refused, and after training."""
    for make in (dense, batch_norm := layers(lambda: nn.BatchNorm1d(FEATURES), linear())):
        clients = Clients(make, sizes=SIZES)
        before = digest(state_of(clients.module))
        names = [name for name, _ in clients.module.named_modules()]
        mode = clients.module.training
        if make is batch_norm:
            with pytest.raises(NotStackable):
                clients.trainers.get(Execution(COMPILED, 4))
        else:
            clients.train(kind=COMPILED)
        assert digest(state_of(clients.module)) == before
        assert [name for name, _ in clients.module.named_modules()] == names
        assert clients.module.training == mode
        assert all(parameter.grad is None for parameter in clients.module.parameters())


# -- the check --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_worker_finds_nothing_wrong(case: Case, optimizer: str) -> None:
    case.clients(double=False, optimizer=optimizer).trainers.checked(Execution(COMPILED, 4))


def test_a_worker_finds_what_only_pretends_to_be_a_chain() -> None:
    """A function that goes by the name of another cannot be told from it by its name."""
    clients = Clients(code(lambda m, x: m.b(relu(m.a(x))), a=linear(FEATURES, 6), b=linear(6)))
    with pytest.raises(ExecutionRefused):
        clients.trainers.checked(Execution(COMPILED, 4))


@torch.fx.wrap
def relu(x: Tensor) -> Tensor:
    """No relu."""
    return functional.leaky_relu(x, 0.5)
