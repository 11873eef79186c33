"""Training several clients at once gives what training one by one gives, whoever is beside whom."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from clients import CLASSES, FEATURES, Clients, apart, mean_of
from fedpilot.federated.core.execution.facts import Execution, ExecutionKind
from fedpilot.federated.errors import ExecutionRefused
from module_builders import OPTIMIZERS, SIZES, builtin, layers, linear
from pairings import paired
from stackable_modules import CASES, LENGTH, STACKED, WORDS, Case, images, words

FEW_MAPPED = ("mlp", "transformer", "embedding", "pooling and a way around")
"""`mapped` is PyTorch's own `vmap`: of the modules that fold, these show that it is used."""
SOON = [
    each
    for each in STACKED
    if each.values[1] == "folded"
    or "folded" not in each.values[0].kinds
    or str(each.id).startswith(FEW_MAPPED)
]
LATER = [
    pytest.param(*each.values, id=each.id, marks=pytest.mark.soak)
    for each in STACKED
    if each not in SOON
]


@pytest.mark.parametrize(
    ("case", "kind", "optimizer"),
    [
        *paired(SOON, list(OPTIMIZERS)),
        *(
            pytest.param(*each.values, name, id=f"{each.id}-{name}", marks=pytest.mark.soak)
            for each in LATER
            for name in OPTIMIZERS
        ),
    ],
)
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


@pytest.mark.parametrize(
    ("batch", "kind", "optimizer"),
    paired(
        [pytest.param(n, k, id=f"{n}-{k}") for n in (1, 3, 9, 64) for k in ("folded", "mapped")],
        list(OPTIMIZERS),
    ),
)
def test_whatever_the_size_of_a_batch(batch: int, kind: str, optimizer: str) -> None:
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
        clients.trainers.checked(Execution(ExecutionKind(kind), len(clients.sizes)))
    except ExecutionRefused as error:
        return error.reason
    return ""


@pytest.mark.parametrize(("case", "kind"), [*SOON, *LATER])
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

    @settings(max_examples=min(12, settings().max_examples // 10), deadline=None)
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


# -- where matrices begin ---------------------------------------------------------------------


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
