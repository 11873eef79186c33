"""Modules whose clients can be trained at once: folded into a batch, or mapped by vmap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import module_builders
from clients import CLASSES, FEATURES, dense, numbers, tokens
from fedpilot.federated.core.state import Array
from module_builders import TOTAL, builtin, code, layers, linear, tied

WORDS, LENGTH = 7, 6
IMAGE = (2, 8, 8)


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
class Case(module_builders.Case):
    """With the ways in which it may be trained; a text is why it is refused."""

    folded: str = ""
    mapped: str = ""

    @property
    def kinds(self) -> list[str]:
        return [kind for kind in ("folded", "mapped") if not getattr(self, kind)]


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
