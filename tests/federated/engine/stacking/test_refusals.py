"""What cannot be trained at once with the same result is refused with words, and left as it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clients import CLASSES, FEATURES, Clients, dense
from fedpilot.federated.core.execution.facts import Execution, ExecutionKind
from fedpilot.federated.engine.stacking import FoldedModule, NotStackable
from fedpilot.federated.errors import ClientFailed
from module_builders import code, layers, linear
from stackable_modules import CASES, WORDS, Attending, Case, images, sequences, words


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
        clients.trainers.get(Execution(ExecutionKind(kind), 4))
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
    works = [lambda: module(x), lambda: module(x), lambda: FoldedModule(dense(), 2, fused=False)]
    threads = [threading.Thread(target=running, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for _ in range(50):
        FoldedModule(dense(), 2, fused=False)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
