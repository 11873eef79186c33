"""A chain of dense layers is compiled; any other module is refused, with words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clients import CLASSES, CPU, FEATURES, Clients, dense, labels, numbers, tokens
from fedpilot.federated.core.execution.facts import Execution, ExecutionKind
from fedpilot.federated.core.state import Array
from fedpilot.federated.engine.stacking import NotStackable
from fedpilot.federated.engine.trainers.trainer_factory import TrainerFactory
from fedpilot.federated.engine.trainers.trainers import Trainers
from fedpilot.federated.engine.training.samples import Samples
from module_builders import SIZES, TOTAL, Make, code, layers, linear, tied

COMPILED = ExecutionKind.COMPILED

IMAGES = numbers(TOTAL, (2, 3, 4))
NO_PART = "is no part of a chain of dense layers"
NO_CHAIN = "it is more than one layer after the other"
WEIGHTS = "it has more weights than those of its chain, or shares some"
WHOLE = "(Linear) is not fed whole samples in one dimension"


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
