"""An execution is chosen by a model's structure and its config, and checked on a fixed probe."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clients import CLASSES, CPU, FEATURES, Clients, dense, tokens
from fedpilot.federated.config.schema import Training
from fedpilot.federated.core.execution.execution import SEQUENTIAL_CHUNK, Choice, ExecutionWish
from fedpilot.federated.core.execution.facts import (
    Circumstances,
    Execution,
    ExecutionKind,
    LayerKind,
)
from fedpilot.federated.engine.choosing import choose
from fedpilot.federated.engine.stacking import NotStackable
from fedpilot.federated.engine.structure import facts_of
from fedpilot.federated.engine.trainers import probe
from fedpilot.federated.engine.trainers.probe import Unchecked, check, example
from fedpilot.federated.engine.training.modules import loss_function
from fedpilot.federated.errors import ExecutionRefused

Make = Callable[[], nn.Module]
ALONE = Execution(ExecutionKind.SEQUENTIAL, SEQUENTIAL_CHUNK)


def chosen(
    make: Make,
    kind: str | None = None,
    chunk_size: int | None = None,
    *,
    input_shape: tuple[int, ...] = (FEATURES,),
    dtype: torch.dtype = torch.float32,
    cohort: int = 8,
    memory: int = 2 << 30,
    device: str = "cpu",
    loss: Any = None,
    update: Any = None,
    **training: Any,
) -> Choice:
    torch.manual_seed(1)
    settings = Training(**{"batch_size": 10, **training})
    return choose(
        make(),
        settings,
        Circumstances(settings.batch_size, "plain", cohort, memory, device),
        ExecutionWish(None if kind is None else ExecutionKind(kind), chunk_size),
        input_shape=input_shape,
        dtype=dtype,
        loss=loss or loss_function("cross_entropy"),
        update=update,
    )


# -- models -----------------------------------------------------------------------------------


def leaky() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.LeakyReLU(), nn.Linear(8, CLASSES))


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))


def bare_batch_norm() -> nn.Module:
    """Batch statistics without a parameter or buffer."""
    norm = nn.BatchNorm1d(4, affine=False, track_running_stats=False)
    return nn.Sequential(nn.Linear(FEATURES, 4), norm, nn.Linear(4, CLASSES))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, CLASSES)
    )


class Unused(nn.Module):
    """Has a layer that its code never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.spare = nn.Linear(FEATURES, CLASSES), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Bag(nn.Module):
    def __init__(self, words: int = 11) -> None:
        super().__init__()
        self.bag, self.top = nn.EmbeddingBag(words, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.bag(x))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRU(3, 6, num_layers=2, batch_first=True)
        self.top = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.inner(x)[0][:, -1])


class Mixing(nn.Module):
    """Its samples see each other, and no layer tells."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x - x.mean(0))


class Counting(nn.Module):
    """Training changes its buffer."""

    def __init__(self, *, kept: bool = True, used: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.used = used
        self.register_buffer("seen", torch.ones(()), persistent=kept)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        out = self.linear(x)
        return out * self.seen if self.used else out


class Scaled(nn.Module):
    """Has a parameter of its own, so that it maps and does not fold."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.heat = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.heat


class Raising(nn.Module):
    """Trains on none of the samples that a probe is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not isinstance(x, torch.fx.Proxy):
            raise ValueError("no")
        return self.linear(x)


# -- auto -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "shape", "dtype", "execution"),
    [
        pytest.param(
            dense, (FEATURES,), torch.float32, Execution(ExecutionKind.COMPILED, 8), id="a chain"
        ),
        pytest.param(
            leaky, (FEATURES,), torch.float32, Execution(ExecutionKind.FOLDED, 8), id="leaky ReLU"
        ),
        pytest.param(
            Unused,
            (FEATURES,),
            torch.float32,
            Execution(ExecutionKind.MAPPED, 8),
            id="an unused layer",
        ),
        pytest.param(
            Bag, (6,), torch.int64, Execution(ExecutionKind.MAPPED, 8), id="an embedding bag"
        ),
        pytest.param(Recurrent, (5, 3), torch.float32, ALONE, id="a GRU"),
        pytest.param(
            convolutions,
            (1, 8, 8),
            torch.float32,
            Execution(ExecutionKind.FOLDED, 8),
            id="convolutions",
        ),
        pytest.param(batch_norm, (FEATURES,), torch.float32, ALONE, id="batch norm"),
    ],
)
def test_what_is_chosen(
    make: Make, shape: tuple[int, ...], dtype: torch.dtype, execution: Execution
) -> None:
    assert chosen(make, input_shape=shape, dtype=dtype).execution == execution


@pytest.mark.parametrize("make", [dense, leaky, Scaled, Recurrent])
def test_no_clock_decides(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a slow one, nor one that stands still or runs backwards."""
    shape = (5, 3) if make is Recurrent else (FEATURES,)
    undisturbed = chosen(make, input_shape=shape)
    for pace in (1e6, 0.0, -1.0):
        ticks = iter(range(1 << 30))
        for clock in ("perf_counter", "process_time", "thread_time", "monotonic", "time"):
            monkeypatch.setattr(time, clock, lambda pace=pace, ticks=ticks: pace * next(ticks))
        assert chosen(make, input_shape=shape) == undisturbed
        monkeypatch.undo()


def test_no_machine_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = chosen(leaky)
    monkeypatch.setattr("os.cpu_count", lambda: 999)
    monkeypatch.setattr("os.sysconf", lambda _name: 1)
    monkeypatch.setattr(torch, "__version__", "0.0")
    monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere")
    assert chosen(leaky) == undisturbed


def test_configured_memory_bounds_a_chunk() -> None:
    sizes = [
        chosen(leaky, "folded", cohort=64, memory=memory).execution.chunk_size
        for memory in (1 << 10, 1 << 17, 1 << 30)
    ]
    assert sizes[0] == 1
    assert sizes == sorted(sizes)
    assert sizes[-1] == 64


@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(
            batch_norm,
            ["compiled: 1 is no part", "folded: 1 (BatchNorm1d) has", "mapped: vmap"],
            id="batch norm",
        ),
        pytest.param(
            bare_batch_norm, ["compiled: 1 is no part", "folded: ", "mapped: "],
            id="batch statistics without a trace",
        ),
        pytest.param(
            Mixing, ["compiled: it is more", "folded: ", "mapped: samples of a batch influence"],
            id="samples that mix",
        ),
        pytest.param(
            Counting, ["compiled: ", "folded: training changes seen", "mapped: "], id="a buffer"
        ),
        pytest.param(
            lambda: Counting(kept=False, used=True),
            ["compiled: ", "folded: a client's bits depend", "mapped: "],
            id="a buffer that is not saved",
        ),
    ],
)  # fmt: skip
def test_what_would_come_out_otherwise_is_trained_one_by_one(make: Make, words: list[str]) -> None:
    found = chosen(make)
    assert found.execution == ALONE
    for each in words:
        assert each in found.reason


def test_what_is_cheapest_and_wrong_gives_way_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ExecutionKind] = []

    def refuse(execution: Execution, *_: Any, **__: Any) -> None:
        asked.append(execution.kind)
        raise NotStackable(f"no {len(asked)}")

    def refuse_chain(*_: Any) -> None:
        refuse(Execution(ExecutionKind.COMPILED, 1))

    monkeypatch.setattr(probe, "check", refuse)
    monkeypatch.setattr(probe, "check_chain", refuse_chain)
    found = chosen(dense)
    assert asked == [ExecutionKind.COMPILED, ExecutionKind.FOLDED, ExecutionKind.MAPPED]
    assert found == Choice(ALONE, "compiled: no 1; folded: no 2; mapped: no 3")


@torch.fx.wrap
def relu(x: Tensor) -> Tensor:
    """No relu."""
    return nn.functional.leaky_relu(x, 0.5)


class Pretending(nn.Module):
    """Looks like a chain: a function that goes by the name of another."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(FEATURES, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(relu(self.a(x)))


def test_what_only_pretends_to_be_a_chain_is_not_compiled() -> None:
    assert chosen(Pretending).execution.kind is ExecutionKind.FOLDED
    with pytest.raises(ExecutionRefused, match="something else than the chain"):
        chosen(Pretending, "compiled")


def test_code_that_does_not_take_the_probe_is_trained_one_by_one() -> None:
    found = chosen(Raising)
    assert found.execution == ALONE
    assert "samples of random numbers: ValueError: no" in found.reason


def test_code_that_does_not_take_the_probe_may_be_named() -> None:
    """Whoever names the way answers for it: nothing was found against it."""
    assert chosen(Raising, "folded", 4).execution == Execution(ExecutionKind.FOLDED, 4)
    torch.manual_seed(1)
    clients = Clients(Raising)
    with pytest.raises(Unchecked):
        check_of(clients, "folded")


def a_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """A loss of one's own."""
    return nn.functional.cross_entropy(outputs, labels)


@pytest.mark.parametrize("kind", ["folded", "mapped", "compiled"])
@pytest.mark.parametrize(
    ("own", "word"), [({"update": lambda _: None}, "client_update"), ({"loss": a_loss}, "loss_")]
)
def test_own_code_that_sees_one_client(own: dict[str, Any], word: str, kind: str) -> None:
    found = chosen(dense, **own)
    assert found.execution == ALONE
    assert word in found.reason
    assert chosen(dense, "sequential", 5, **own).execution.chunk_size == 5
    with pytest.raises(ExecutionRefused, match="one client"):
        chosen(dense, kind, **own)


def test_for_a_gpu_nothing_is_compiled() -> None:
    assert chosen(dense, device="cuda", cohort=500).execution == Execution(
        ExecutionKind.FOLDED, 500
    )
    with pytest.raises(ExecutionRefused, match="for the CPU"):
        chosen(dense, "compiled", device="cuda")


# -- by name ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sequential", "folded", "mapped", "compiled"])
def test_a_way_that_is_named_is_taken(kind: str) -> None:
    found = chosen(dense, kind, 5)
    assert found == Choice(Execution(ExecutionKind(kind), 5), "as the configuration says")


@pytest.mark.parametrize("kind", ["folded", "mapped", "compiled"])
@pytest.mark.parametrize("make", [batch_norm, bare_batch_norm, Mixing, Counting])
def test_a_way_that_is_named_and_wrong_is_refused(kind: str, make: Make) -> None:
    with pytest.raises(ExecutionRefused):
        chosen(make, kind, 4)


# -- at a worker ------------------------------------------------------------------------------


def check_of(clients: Clients, kind: str, chunk_size: int = 4) -> None:
    execution = Execution(ExecutionKind(kind), chunk_size)
    check(execution, clients.resident, clients.settings, like=clients.samples.x, device=CPU)


@pytest.mark.parametrize("kind", ["folded", "mapped", "compiled"])
def test_a_worker_that_finds_otherwise_fails_by_name(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = Clients(dense)
    way = Execution(ExecutionKind(kind), 4)
    assert clients.trainers.checked(way) is clients.trainers.get(way)

    def differ(*_: Any) -> None:
        raise NotStackable("a client's bits depend on its mates")

    monkeypatch.setattr(probe, "_check_mates", differ)
    with pytest.raises(ExecutionRefused, match=f"execution: {kind}.*bits depend on its mates"):
        Clients(dense).trainers.checked(way)


def test_the_probe_has_nothing_of_the_clients_data() -> None:
    """Whatever they hold, and however much: it is made of counters."""
    module = dense()
    few, many = (example(module, (FEATURES,), torch.float32) for _ in range(2))
    assert torch.equal(few, many)
    empty = Clients(leaky, sizes=(0, 0), x=torch.zeros((0, FEATURES)).numpy())
    check_of(empty, "folded")
    spoilt = Clients(leaky, x=torch.full((51, FEATURES), torch.nan).numpy())
    check_of(spoilt, "folded")


def test_tokens_of_a_probe_are_in_every_table() -> None:
    found = example(Bag(words=3), (40,), torch.int64)
    assert set(found.unique().tolist()) <= {0, 1, 2}
    check_of(Clients(Bag, x=tokens(51, 6, 11)), "mapped")


@pytest.mark.parametrize("make", [dense, batch_norm, Counting, Scaled])
def test_what_comes_after_is_as_without_a_check(make: Make) -> None:
    sizes = (23, 9, 4, 14)  # batch statistics of one sample are none
    expected = {c: after.bits for c, after in Clients(make, sizes=sizes).train().items()}
    checked = Clients(make, sizes=sizes)
    for kind in ("folded", "mapped", "compiled"):
        try:
            checked.trainers.checked(Execution(ExecutionKind(kind), 3))
        except ExecutionRefused:
            continue
    assert {c: after.bits for c, after in checked.train().items()} == expected


# -- structure --------------------------------------------------------------------------------


def test_facts_are_those_of_the_structure() -> None:
    module = dense()
    found = facts_of(module, example(module, (FEATURES,), torch.float32))
    assert [layer.kind for layer in found.layers] == ["linear", "pointwise", "linear"]
    assert [layer.products for layer in found.layers] == [FEATURES * 8, 0, 8 * CLASSES]
    assert [layer.outputs for layer in found.layers] == [8, 8, CLASSES]
    assert found.trained == FEATURES * 8 + 8 + 8 * CLASSES + CLASSES
    assert (found.tensors, found.inputs, found.itemsize) == (4, FEATURES, 4)
    assert found.widths == (FEATURES, 8, CLASSES)


def test_a_recurrent_layer_takes_its_steps() -> None:
    module = Recurrent()
    found = facts_of(module, example(module, (5, 3), torch.float32))
    (recurrent,) = [layer for layer in found.layers if layer.kind is LayerKind.RECURRENT]
    assert recurrent.steps == 5 * 2
    assert found.widths == ()


def test_functions_that_code_calls_are_counted_and_those_inside_layers_are_not() -> None:
    class Functions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.weight = nn.LayerNorm(FEATURES), nn.Parameter(torch.ones(4, FEATURES))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(nn.functional.linear(self.norm(x), self.weight)).flatten(1) + 1

    module = Functions()
    found = facts_of(module, example(module, (FEATURES,), torch.float32))
    assert [str(layer.kind) for layer in found.layers] == [
        "norm", "linear", "smooth", "view", "pointwise"
    ]  # fmt: skip
    assert found.layers[1].products == 4 * FEATURES


def test_reading_a_structure_leaves_the_module_and_the_randomness_alone() -> None:
    module = nn.Sequential(batch_norm(), nn.Dropout(0.5))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    facts_of(module, example(module, (FEATURES,), torch.float32))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[n], t) for n, t in module.state_dict().items())
