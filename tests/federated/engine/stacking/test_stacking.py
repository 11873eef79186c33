"""Training several clients at once gives what training one by one gives, or is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn import functional

from clients import CLASSES, FEATURES, After, Clients, dense, mean_of, numbers, tokens
from fedpilot.federated import models
from fedpilot.federated.core.execution.facts import Execution, Kind
from fedpilot.federated.core.state import Array
from fedpilot.federated.engine.stacking import FoldedModule, NotStackable
from fedpilot.federated.errors import ClientFailed, ExecutionRefused

SIZES = (9, 3, 0, 6, 1, 4)
TOTAL = sum(SIZES)
WORDS, LENGTH = 7, 6
IMAGE = (2, 8, 8)

OPTIMIZERS = {
    "sgd": {"optimizer": "sgd", "learning_rate": 0.05},
    "momentum": {
        "optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.01
    },
    "adam": {"optimizer": "adam", "learning_rate": 0.01},
    "adamw": {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def builtin(name: str, shape: tuple[int, ...], **options: Any) -> Callable[[], nn.Module]:
    return lambda: models.build(name, options, shape, CLASSES)


def layers(*made: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(make() for make in made))


class Code(nn.Module):
    """Parts by name, and a forward pass over them."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def code(
    run: Callable[[Any, Tensor], Tensor], **parts: Callable[[], nn.Module]
) -> Callable[[], nn.Module]:
    return lambda: Code(run, **{name: make() for name, make in parts.items()})


def linear(of: int = FEATURES, to: int = CLASSES, **options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(of, to, **options)


def tied() -> nn.Module:
    module = nn.Sequential(linear(FEATURES, FEATURES)(), nn.Tanh(), linear(FEATURES, FEATURES)())
    module[2].weight = module[0].weight
    return module


def under_two_names() -> nn.Module:
    same = nn.Linear(FEATURES, FEATURES)
    return nn.Sequential(same, nn.ReLU(), same, linear()())


def frozen(*paths: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        module = dense()
        for path in paths:
            module.get_parameter(path).requires_grad_(False)
        return module

    return make


class Scaled(nn.Module):
    """Has a buffer that nobody changes, and parameters of its own."""

    def __init__(self, *, own: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("factor", torch.tensor([0.5, 2.0, 1.0, 3.0, 0.1]))
        if own:
            self.shift = nn.Parameter(torch.randn(FEATURES))
            self.heat = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.factor
        if hasattr(self, "shift"):
            return self.linear(x + self.shift) * self.heat
        return self.linear(x)


class TiedEmbedding(nn.Module):
    """Uses the weights of a layer outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 4)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.embedding(x).mean(1), self.embedding.weight)


class Attending(nn.Module):
    """nn.MultiheadAttention on sequences."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=dropout, batch_first=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.attention(x, x, x, need_weights=False)
        return self.head(out.mean(1))


class SubclassedLinear(nn.Linear):
    """Computes otherwise than its base."""

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * super().forward(x)


@dataclass(frozen=True)
class Case:
    """A model, its samples, and how it may be trained; a text is why it is refused."""

    make: Callable[[], nn.Module]
    x: Callable[[], Array] = lambda: numbers(TOTAL)
    folded: str = ""
    mapped: str = ""

    @property
    def kinds(self) -> list[str]:
        return [kind for kind in ("folded", "mapped") if not getattr(self, kind)]

    def clients(self, *, double: bool = True, **training: Any) -> Clients:
        return Clients(self.make, x=self.x(), sizes=SIZES, training=training, double=double)


def images(shape: tuple[int, ...] = IMAGE) -> Callable[[], Array]:
    return lambda: numbers(TOTAL, shape)


def words() -> Array:
    return tokens(TOTAL, LENGTH, WORDS)


def sequences() -> Array:
    return numbers(TOTAL, (LENGTH, 4))


def convolution(kind: type[nn.Module], *sizes: int, sides: tuple[int, ...], **options: Any) -> Any:
    """One convolution and a dense layer; the shape is (sizes[0], *sides)."""

    def make() -> nn.Module:
        conv = kind(*sizes, **options)
        width = conv(torch.zeros(1, sizes[0], *sides)).numel()
        return nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(width, CLASSES))

    return make


CASES = {
    "logistic regression": Case(builtin("logistic_regression", (FEATURES,))),
    "mlp": Case(builtin("mlp", (FEATURES,), hidden=[8, 6])),
    "mlp on images": Case(builtin("mlp", IMAGE, hidden=[8]), images()),
    "cnn": Case(builtin("cnn", (1, 6, 6)), images((1, 6, 6))),
    "lenet": Case(builtin("lenet", IMAGE), images()),
    "resnet": Case(builtin("resnet18", IMAGE, width=4), images()),
    "transformer on tokens": Case(
        builtin("transformer", (LENGTH,), vocabulary=WORDS, layers=2, width=8, heads=2), words
    ),
    "transformer on numbers": Case(
        builtin("transformer", (LENGTH, 4), layers=1, width=8, heads=2), sequences
    ),
    "a layer by itself": Case(linear()),
    "a layer without bias": Case(linear(bias=False)),
    "dense on sequences": Case(
        code(lambda m, x: m.b(m.a(x).relu()).mean(1), a=linear(4, 6), b=linear(6)), sequences
    ),
    "embedding": Case(
        code(lambda m, x: m.head(m.words(x).mean(1)), words=lambda: nn.Embedding(WORDS, 4),
             head=linear(4)), words,
    ),
    "embedding with padding": Case(
        code(lambda m, x: m.head(m.words(x).mean(1)), head=linear(4),
             words=lambda: nn.Embedding(WORDS, 4, padding_idx=2)), words,
        mapped="words (Embedding) has padding_idx",
    ),
    "layer norm": Case(layers(linear(FEATURES, 6), lambda: nn.LayerNorm(6), linear(6))),
    "layer norm without bias": Case(
        layers(linear(FEATURES, 6), lambda: nn.LayerNorm(6, bias=False), linear(6))
    ),
    "layer norm without weights": Case(
        layers(linear(FEATURES, 6), lambda: nn.LayerNorm(6, elementwise_affine=False), linear(6))
    ),
    "layer norm of two dimensions": Case(
        layers(linear(4, 4), lambda: nn.LayerNorm((LENGTH, 4)), nn.Flatten, linear(LENGTH * 4)),
        sequences,
    ),
    "group norm": Case(
        layers(lambda: nn.Conv2d(2, 4, 3), lambda: nn.GroupNorm(2, 4), nn.ReLU, nn.Flatten,
               linear(4 * 36)), images(),
    ),
    "group norm without weights": Case(
        layers(lambda: nn.Conv2d(2, 4, 3), lambda: nn.GroupNorm(2, 4, affine=False), nn.Flatten,
               linear(4 * 36)), images(),
    ),
    "group norm of features": Case(
        layers(linear(FEATURES, 6), lambda: nn.GroupNorm(3, 6), linear(6))
    ),
    "instance norm": Case(
        layers(lambda: nn.Conv2d(2, 4, 3), lambda: nn.InstanceNorm2d(4), nn.Flatten,
               linear(4 * 36)), images(),
    ),
    "matrices that begin anywhere in memory": Case(
        builtin("mlp", (61,), hidden=[62, 30]), lambda: numbers(TOTAL, (61,))
    ),
    "tied weights": Case(tied),
    "a layer under two names": Case(under_two_names),
    "a layer called twice": Case(
        code(lambda m, x: m.head(m.inner(m.inner(x).tanh())), inner=linear(FEATURES, FEATURES),
             head=linear()),
    ),
    "a layer called twice behind another": Case(
        code(lambda m, x: m.head(m.inner(m.inner(m.first(x)).tanh())), first=linear(FEATURES, 4),
             inner=linear(4, 4), head=linear(4)),
    ),
    "a frozen layer first": Case(frozen("0.weight", "0.bias")),
    "a frozen layer last": Case(frozen("2.weight", "2.bias")),
    "a frozen weight beside a bias": Case(frozen("0.weight", "2.weight")),
    "a frozen bias beside a weight": Case(frozen("0.bias")),
    "a buffer that stays": Case(lambda: Scaled(own=False)),
    "conv1d": Case(convolution(nn.Conv1d, 4, 6, 3, sides=(LENGTH,)), images((4, LENGTH))),
    "conv3d": Case(convolution(nn.Conv3d, 1, 2, 2, sides=(3, 3, 3)), images((1, 3, 3, 3))),
    "grouped conv": Case(convolution(nn.Conv2d, 4, 8, 3, sides=(6, 6), groups=2),
                         images((4, 6, 6))),
    "depthwise conv": Case(convolution(nn.Conv2d, 4, 4, 3, sides=(6, 6), groups=4, bias=False),
                           images((4, 6, 6))),
    "conv with stride, padding and dilation": Case(
        convolution(nn.Conv2d, 2, 3, 3, sides=(8, 8), stride=2, padding=2, dilation=2), images()
    ),
    "conv with the same padding": Case(
        convolution(nn.Conv2d, 2, 3, 3, sides=(8, 8), padding="same"), images()
    ),
    "pooling and a way around": Case(
        code(lambda m, x: m.head((m.a(x) + m.b(m.a(x))).relu().mean((2, 3))),
             a=lambda: nn.Conv2d(2, 4, 3, padding=1), b=lambda: nn.Conv2d(4, 4, 3, padding=1),
             head=linear(4)), images(),
    ),
    "shapes that are asked for": Case(
        code(lambda m, x: m.head(x.view(x.shape[0], -1)), head=linear(2 * 64)), images()
    ),
    "parameters of its own": Case(lambda: Scaled(own=True), folded="uses the parameter"),
    "weights used outside of their layer": Case(
        TiedEmbedding, words, folded="uses the parameter embedding.weight"
    ),
    "a layer of its own kind": Case(
        code(lambda m, x: m.inner(x), inner=lambda: SubclassedLinear(FEATURES, CLASSES)),
        folded="uses the parameter inner.weight",
    ),
    "multi-head attention": Case(Attending, sequences, folded="has no folded form"),
    "a transposed convolution": Case(
        layers(lambda: nn.ConvTranspose2d(2, 2, 2), nn.Flatten, linear(2 * 81)), images(),
        folded="has no folded form",
    ),
    "padding that goes round": Case(
        convolution(nn.Conv2d, 2, 3, 3, sides=(8, 8), padding=1, padding_mode="circular"),
        images(), folded="padding_mode 'circular'",
    ),
    "a learned slope": Case(
        layers(linear(FEATURES, 4), nn.PReLU, linear(4)), folded="has no folded form"
    ),
    "a layer that is never called": Case(
        code(lambda m, x: m.used(x), used=linear(), unused=linear(2, 2)),
        folded="never calls unused",
    ),
}  # fmt: skip

STACKED = [
    pytest.param(case, kind, id=f"{name}, {kind}")
    for name, case in CASES.items()
    for kind in case.kinds
]


def apart(one: dict[int, After], other: dict[int, After]) -> float:
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
@pytest.mark.parametrize(("case", "kind"), STACKED)
def test_it_is_what_training_one_by_one_gives(case: Case, kind: str, optimizer: str) -> None:
    """In float64, over two rounds of unequal clients: some below a batch, one without samples."""
    clients = case.clients(number_of_epochs=2, **OPTIMIZERS[optimizer])
    alone = clients.train()
    together = clients.train(kind=kind)
    assert apart(alone, together) < 1e-9
    model = mean_of(alone, SIZES)
    assert max(np.abs(model[n] - clients.initial[n]).max() for n in model) > 1e-4, "they learned"
    alone = clients.train(model=model, number=2)
    assert apart(alone, clients.train(kind=kind, model=model, number=2)) < 1e-9


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["folded", "mapped"])
@pytest.mark.parametrize("batch", [1, 3, 9, 64])
def test_whatever_the_size_of_a_batch(optimizer: str, kind: str, batch: int) -> None:
    training = {"number_of_epochs": 3, **OPTIMIZERS[optimizer], "batch_size": batch}
    clients = CASES["mlp"].clients(**training)
    assert apart(clients.train(), clients.train(kind=kind)) < 1e-9


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["folded", "mapped"])
def test_in_float32_they_differ_by_rounding(optimizer: str, kind: str) -> None:
    clients = CASES["mlp"].clients(double=False, number_of_epochs=3, **OPTIMIZERS[optimizer])
    alone, together = clients.train(), clients.train(kind=kind)
    assert {array.dtype for after in together.values() for array in after.state.values()} == {
        np.dtype("f4")
    }
    assert apart(alone, together) < 1e-5


# -- mates ------------------------------------------------------------------------------------


class Known:
    """What every client becomes alone, found once for all examples."""

    def __init__(self, case: Case, kind: str) -> None:
        self.clients = case.clients(double=False, number_of_epochs=2)
        self.kind = kind
        self.alone = {
            client: self.clients.one(client, kind=kind, chunk_size=1).bits
            for client in self.clients.everybody
        }

    def together(self, order: list[int], chunk_size: int) -> dict[int, tuple[str, float]]:
        found = self.clients.train(order, kind=self.kind, chunk_size=chunk_size)
        return {client: after.bits for client, after in found.items()}


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)


def refused_by_a_worker(clients: Clients, kind: str) -> str:
    """Why a worker refuses an execution; empty if it does not."""
    try:
        clients.trainers.checked(Execution(Kind(kind), len(clients.sizes)))
    except ExecutionRefused as error:
        return error.reason
    return ""


@pytest.mark.parametrize(("case", "kind"), STACKED)
def test_a_clients_bits_do_not_depend_on_its_mates(case: Case, kind: str) -> None:
    """Nor on its place among them. What cannot keep that promise here is refused by workers."""
    known = Known(case, kind)
    why = refused_by_a_worker(known.clients, kind)
    if why:
        assert why.startswith("a client's bits depend on its mates")
        assert kind == "mapped", "all that folds keeps it on a CPU"
        assert any(isinstance(layer, CONVOLUTIONS) for layer in known.clients.module.modules())
        return
    everybody = known.clients.everybody

    @settings(max_examples=12, deadline=None)
    @given(
        st.permutations(everybody), st.integers(1, len(everybody)), st.integers(1, len(everybody))
    )
    def whoever_they_are(order: list[int], some: int, chunk_size: int) -> None:
        found = known.together(order[:some], chunk_size)
        assert found == {client: known.alone[client] for client in order[:some]}

    whoever_they_are()


def dropping(rate: float = 0.5) -> Callable[[], nn.Module]:
    return layers(linear(FEATURES, 16), nn.ReLU, lambda: nn.Dropout(rate), linear(16))


DROPPING = {
    "mlp": Case(dropping()),
    "cnn": Case(builtin("cnn", (1, 6, 6), dropout=0.3), images((1, 6, 6))),
    "transformer": Case(
        builtin("transformer", (LENGTH,), vocabulary=WORDS, layers=1, width=8, heads=2,
                dropout=0.2), words,
    ),
    "everything": Case(dropping(1.0)),
}  # fmt: skip


@pytest.mark.parametrize("case", DROPPING.values(), ids=DROPPING.keys())
def test_dropout_does_not_depend_on_mates_either(case: Case) -> None:
    known = Known(case, "folded")
    for order, size in (([0, 1, 2, 3, 4, 5], 6), ([5, 3, 0], 2), ([4, 1, 3], 3)):
        assert known.together(order, size) == {client: known.alone[client] for client in order}


def test_dropout_differs_by_client_and_step_and_keeps_as_many_as_it_says() -> None:
    """Of clients with equal samples and no shuffling, only dropout can tell one from another."""
    masks: list[Tensor] = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.25)
            self.linear = nn.Linear(100, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            dropped = self.drop(x)
            if not isinstance(x, torch.fx.Proxy):
                masks.append(dropped.detach().clone())
            return self.linear(dropped)

    ones = np.ones((40, 100), dtype=np.float32)
    clients = Clients(
        Watching, x=ones, sizes=(20, 20), training={"batch_size": 10, "shuffle": False}
    )
    clients.train(kind="folded")
    assert len(masks) == 2
    first, second = masks[0][:10], masks[0][10:]
    assert not torch.equal(first, second), "clients"
    assert not torch.equal(masks[0], masks[1]), "steps"
    assert set(masks[0].unique().tolist()) == {0.0, float(np.float32(1) / np.float32(0.75))}
    kept = float((torch.cat(masks) > 0).double().mean())
    assert kept == pytest.approx(0.75, abs=0.03)
    again = [mask.clone() for mask in masks]
    masks.clear()
    clients.train(kind="folded", number=2)
    assert not torch.equal(masks[0], again[0]), "rounds"
    masks.clear()
    clients.train(kind="folded")
    assert all(torch.equal(a, b) for a, b in zip(masks, again, strict=True)), "nothing else"


# -- what is refused --------------------------------------------------------------------------


def refusal(case: Case, kind: str) -> str:
    """Why it cannot be trained that way: said when the trainer is made, or when it first runs."""
    clients = case.clients(double=False)
    with pytest.raises((NotStackable, ClientFailed)) as caught:
        clients.train(kind=kind)
    error: BaseException = caught.value
    while error.__cause__ is not None and not isinstance(error, NotStackable):
        error = error.__cause__
    assert isinstance(error, NotStackable), repr(caught.value)
    return str(error)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name, case in CASES.items()
        for kind in ("folded", "mapped")
        if getattr(case, kind)
    ],
)
def test_what_one_way_cannot_do_is_refused_with_words(name: str, kind: str) -> None:
    assert getattr(CASES[name], kind) in refusal(CASES[name], kind)


def unrolled(m: Any, x: Tensor) -> Tensor:
    return m.head(x) if float(x.sum()) > 0 else -m.head(x)


REFUSED = {
    "batch norm": (
        Case(layers(linear(FEATURES, 4), lambda: nn.BatchNorm1d(4), linear(4))),
        "1 (BatchNorm1d) has no folded form", "vmap",
    ),
    "functional dropout": (
        Case(code(lambda m, x: m.head(functional.dropout(x, 0.5, m.training)), head=linear())),
        "draws random numbers by dropout", "vmap",
    ),
    "dropout of channels": (
        Case(layers(lambda: nn.Dropout2d(0.5), nn.Flatten, linear(128)), images()),
        "0 (Dropout2d) draws random numbers", "vmap",
    ),
    "noise": (
        Case(code(lambda m, x: m.head(x + torch.randn_like(x)), head=linear())),
        "draws random numbers by randn_like", "vmap",
    ),
    "noise in training only": (
        Case(code(lambda m, x: m.head(x + torch.randn_like(x) if m.training else x),
                  head=linear())),
        "draws random numbers by randn_like", "vmap",
    ),
    "decisions on values": (
        Case(code(unrolled, head=linear())), "its code cannot be traced", "vmap",
    ),
    "attention with dropout": (
        Case(lambda: Attending(0.1), sequences), "has no folded form", "vmap",
    ),
    "an embedding that is normed": (
        Case(code(lambda m, x: m.head(m.words(x).mean(1)), head=linear(4),
                  words=lambda: nn.Embedding(WORDS, 4, max_norm=1.0)), words),
        "words (Embedding) has max_norm", "",
    ),
    "a recurrent layer": (
        Case(code(lambda m, x: m.head(m.cells(x)[0][:, -1]), head=linear(3),
                  cells=lambda: nn.LSTM(4, 3, batch_first=True)), sequences),
        "has no folded form", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("evaluated", [False, True], ids=["fresh", "after an evaluation"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused_with_words(name: str, evaluated: bool) -> None:
    case, folded, mapped = REFUSED[name]
    if evaluated:  # a worker's module may have been left in evaluation mode
        make = case.make
        case = Case(lambda: make().eval(), case.x)
    assert folded in refusal(case, "folded")
    if mapped:
        assert mapped in refusal(case, "mapped")


def test_the_module_itself_is_left_as_it_is() -> None:
    """Also where it is refused: looking at a module must not train it."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(FEATURES, CLASSES)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.seen += 1
            return self.linear(x)

    clients = Clients(Counting)
    for kind in ("folded", "mapped"):
        clients.trainers.get(Execution(Kind(kind), 4))
    assert float(clients.module.seen) == 0.0
    assert [name for name, _ in clients.module.named_modules()] == ["", "linear"]
    assert type(clients.module.linear) is nn.Linear


def test_looking_at_a_module_does_not_disturb_other_threads() -> None:
    """torch.fx puts itself in the place of every module's call while it traces."""
    stop, wrong = threading.Event(), []

    def running(work: Callable[[], object]) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            wrong.append(error)

    module, x = dense(), torch.zeros(3, FEATURES)
    works = [lambda: module(x), lambda: module(x), lambda: FoldedModule(dense(), 2, rate=None)]
    threads = [threading.Thread(target=running, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for _ in range(50):
        FoldedModule(dense(), 2, rate=None)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_matmul_does_not_depend_on_where_in_memory_a_matrix_begins(dtype: torch.dtype) -> None:
    """It does in oneMKL, unless it is told not to; a client's place in a chunk would matter."""
    torch.manual_seed(0)
    for m, k, n in ((20, 785, 62), (10, 61, 10), (33, 128, 3), (64, 6, 10)):
        x, weight = torch.randn(3, m, k, dtype=dtype), torch.randn(3, n, k, dtype=dtype)
        expected = torch.bmm(x, weight.mT)
        for shift in range(1, 8):
            assert torch.equal(torch.bmm(moved(x, shift), weight.mT), expected)
            assert torch.equal(torch.bmm(x, moved(weight, shift).mT), expected)
            alone = nn.functional.linear(moved(x, shift)[1], weight[1])
            assert torch.equal(alone, nn.functional.linear(x[1], weight[1]))


def moved(tensor: Tensor, numbers: int) -> Tensor:
    """The same tensor, so many numbers behind where PyTorch would put it."""
    room = torch.empty(tensor.numel() + numbers, dtype=tensor.dtype)
    return room[numbers:].view(tensor.shape).copy_(tensor)
