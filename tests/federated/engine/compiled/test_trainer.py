"""A compiled kernel trains every client as training one by one does, whoever is beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn import functional

import module_builders
from clients import CLASSES, FEATURES, Clients, apart, dense, labels, mean_of, numbers
from fedpilot.federated.core.execution.facts import Execution, ExecutionKind
from fedpilot.federated.core.state import Array, digest
from fedpilot.federated.core.sums.partial import grid
from fedpilot.federated.engine.stacking import NotStackable
from fedpilot.federated.engine.sums.summing import RunningSum
from fedpilot.federated.engine.training.modules import roles_of, state_of
from fedpilot.federated.engine.training.training import Start
from fedpilot.federated.errors import ExecutionRefused
from module_builders import SIZES, TOTAL, Case, Make, builtin, code, layers, linear
from pairings import paired

IMAGE = (2, 3, 4)
PIXELS = 24
COMPILED = ExecutionKind.COMPILED

OPTIMIZERS = module_builders.OPTIMIZERS | {
    "only momentum": {"optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.5},
    "only proximal": {"optimizer": "sgd", "learning_rate": 0.05, "proximal_mu": 0.5},
    "only weight decay": {"optimizer": "sgd", "learning_rate": 0.05, "weight_decay": 0.1},
    "adam with weight decay": {"optimizer": "adam", "learning_rate": 0.01, "weight_decay": 0.1},
}


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


# -- the same as one by one -------------------------------------------------------------------


@pytest.mark.parametrize(("name", "optimizer"), paired(CASES, list(OPTIMIZERS)))
def test_it_is_what_training_one_by_one_gives(name: str, optimizer: str) -> None:
    """In float64, over two rounds of unequal clients: some below a batch, one without samples."""
    clients = CASES[name].clients(number_of_epochs=2, **OPTIMIZERS[optimizer])
    alone = clients.train()
    assert apart(alone, clients.train(kind=COMPILED)) < 1e-9
    model = mean_of(alone, SIZES)
    assert max(np.abs(model[n] - clients.initial[n]).max() for n in model) > 1e-4, "they learned"
    alone = clients.train(model=model, number=2)
    assert apart(alone, clients.train(kind=COMPILED, model=model, number=2)) < 1e-9


@pytest.mark.parametrize(
    ("epochs", "batch", "optimizer"),
    paired(
        [pytest.param(e, b, id=f"{e}-{b}") for e in (1, 2, 3) for b in (1, 3, 4, 5, 9, 64)],
        list(OPTIMIZERS),
    ),
)
def test_whatever_the_size_of_a_batch(epochs: int, batch: int, optimizer: str) -> None:
    training = {"number_of_epochs": epochs, **OPTIMIZERS[optimizer], "batch_size": batch}
    clients = CASES["three layers of odd widths"].clients(**training)
    assert apart(clients.train(), clients.train(kind=COMPILED)) < 1e-9


@settings(max_examples=settings().max_examples // 4, deadline=None)
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
    clients = CASES["mlp"].clients(**OPTIMIZERS["adamw, proximal"])
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
    ("name", "optimizer"),
    paired(
        ["mlp", "mlp on images", "a layer by itself", "three layers of odd widths", "sigmoid",
         "widths beyond a vector"],
        ["sgd", "momentum", "adam"],
    ),
)  # fmt: skip
def test_a_clients_bits_do_not_depend_on_its_mates(name: str, optimizer: str) -> None:
    """Nor on its place among them, nor on how many there could be."""
    training = {"number_of_epochs": 2, **OPTIMIZERS[optimizer]}
    clients = CASES[name].clients(double=False, **training)
    everybody = clients.everybody
    alone = {c: clients.one(c, kind=COMPILED, chunk_size=1).bits for c in everybody}

    @settings(max_examples=settings().max_examples // 8, deadline=None)
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
    rate = 1e300 if double else 1e30
    diverging = {**OPTIMIZERS[optimizer], "learning_rate": rate, "max_gradient_norm": None}
    training = {"number_of_epochs": 4, "batch_size": 2, **diverging}
    x = 1e20 * numbers(TOTAL)
    clients = Clients(make, x=x, sizes=SIZES, training=training, double=double)
    roles = roles_of(clients.module, keep_buffers=False)
    tensors = clients.tensors()
    total = RunningSum(tensors, roles, clients.partition.client_id)
    total.begin(tensors, grid(clients.initial, roles))
    trainer = clients.trainers.get(Execution(COMPILED, 64))
    chunk = clients.samples.chunk(clients.everybody)
    for trained in trainer.train(chunk, 1, Start(tensors, rate), {}):
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


# -- the check --------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("name", "optimizer"), paired(CASES, ["sgd", "adam"]))
def test_a_worker_finds_nothing_wrong(name: str, optimizer: str) -> None:
    CASES[name].clients(double=False, optimizer=optimizer).trainers.checked(Execution(COMPILED, 4))


def test_a_worker_finds_what_only_pretends_to_be_a_chain() -> None:
    """A function that goes by the name of another cannot be told from it by its name."""
    clients = Clients(code(lambda m, x: m.b(relu(m.a(x))), a=linear(FEATURES, 6), b=linear(6)))
    with pytest.raises(ExecutionRefused):
        clients.trainers.checked(Execution(COMPILED, 4))


@torch.fx.wrap
def relu(x: Tensor) -> Tensor:
    """No relu."""
    return functional.leaky_relu(x, 0.5)
