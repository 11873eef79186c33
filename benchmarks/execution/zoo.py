"""Models of many kinds, drawn by a seed: some to fit a cost model on, others to judge it by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Hardtanh,
)  # fmt: skip
OPTIMIZERS: tuple[dict[str, Any], ...] = (
    {"optimizer": "sgd"}, {"optimizer": "sgd", "momentum": 0.9}, {"optimizer": "adam"},
)  # fmt: skip
CLASSES = 10


@dataclass(frozen=True)
class Specimen:
    """A model, what it is fed, and how it trains."""

    name: str
    make: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    words: int = 0
    """Of token inputs: how many there are; 0 for numbers."""
    training: dict[str, Any] = field(default_factory=dict)
    cohort: int = 64


class Tokens(nn.Module):
    """Embeds tokens, and gives the mean of what a layer makes of them to a linear one."""

    def __init__(self, words: int, width: int, inner: nn.Module | None, outputs: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.inner = inner
        self.top = nn.Linear(outputs, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.table(x)
        if self.inner is not None:
            x = self.inner(x)
            x = x[0] if isinstance(x, tuple) else x
        return self.top(x.mean(1))


class Bag(nn.Module):
    """Classifies bags of words."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(words, width, mode="mean")
        self.top = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.bag(x))


class Sequence(nn.Module):
    """A recurrent layer over a sequence of vectors, and a linear one on its end."""

    def __init__(self, kind: str, inputs: int, width: int, depth: int) -> None:
        super().__init__()
        self.inner = getattr(nn, kind)(inputs, width, num_layers=depth, batch_first=True)
        self.top = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.inner(x)[0][:, -1])


class ResidualDense(nn.Module):
    """Dense layers with a way around each."""

    def __init__(self, inputs: int, width: int, depth: int, norm: bool) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(
            nn.LayerNorm(width) if norm else nn.Identity() for _ in range(depth)
        )
        self.top = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + functional.relu(block(norm(x)))
        return self.top(x)


class Unused(nn.Module):
    """Has a layer that its code never calls."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.spare = nn.Linear(7, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Heated(nn.Module):
    """Uses parameters of its own between layers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.heat = nn.Parameter(torch.tensor(1.5))
        self.shift = nn.Parameter(torch.zeros(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.heat + self.shift


class Attending(nn.Module):
    """One block of attention, made of linear layers, over a sequence of vectors."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.top = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in self.qkv(self.norm(x)).chunk(3, -1)
        )
        found = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        x = x + self.down(functional.gelu(self.up(x)))
        return self.top(x.mean(1))


def zoo(seed: int, count: int) -> list[Specimen]:
    """So many models, one of each family in turn; another seed gives others."""
    dice = np.random.default_rng(seed)
    return [_specimen(dice, i, FAMILIES[i % len(FAMILIES)]) for i in range(count)]


def _specimen(
    dice: np.random.Generator, i: int, family: Callable[[np.random.Generator], Specimen]
) -> Specimen:
    drawn = family(dice)
    batch = int(dice.choice([4, 8, 10, 16, 20, 32, 64]))
    training = {"batch_size": batch, "learning_rate": 0.01, **OPTIMIZERS[dice.integers(3)]}
    cohorts = [4, 8, 10, 20, 25, 40, 64, 100]
    if family is _larger:
        training["batch_size"], cohorts = 10, [8, 20]
    cohort = int(dice.choice(cohorts))
    return replace(drawn, name=f"{i}: {drawn.name}", training=training, cohort=cohort)


def _widths(dice: np.random.Generator, most: int = 3) -> list[int]:
    return [int(dice.choice([8, 16, 32, 50, 64, 100, 128, 200, 256]))
            for _ in range(dice.integers(1, most + 1))]  # fmt: skip


def _dense(
    inputs: int, widths: list[int], between: Callable[[int], list[nn.Module]]
) -> nn.Sequential:
    layers: list[nn.Module] = []
    before = inputs
    for width in widths:
        layers += [nn.Linear(before, width), *between(width)]
        before = width
    return nn.Sequential(*layers, nn.Linear(before, CLASSES))


def _of_dense(
    name: str, inputs: int, widths: list[int], between: Callable[[int], list[nn.Module]]
) -> Specimen:
    return Specimen(name, lambda: _dense(inputs, widths, between), (inputs,))


def _chain(dice: np.random.Generator) -> Specimen:
    inputs = int(dice.choice([6, 20, 64, 128, 784]))
    widths, act = _widths(dice), ACTIVATIONS[dice.integers(3)]
    name = f"dense {inputs} {widths} {act.__name__}"
    return _of_dense(name, inputs, widths, lambda _: [act()])


def _other_dense(dice: np.random.Generator) -> Specimen:
    inputs = int(dice.choice([6, 20, 64, 128, 784]))
    widths, act = _widths(dice), ACTIVATIONS[dice.integers(3, len(ACTIVATIONS))]
    rate = float(dice.choice([0.0, 0.0, 0.5]))
    extra = [nn.Dropout(rate)] if rate else []
    name = f"dense {inputs} {widths} {act.__name__} dropout {rate:g}"
    return _of_dense(name, inputs, widths, lambda _: [act(), *extra])


def _normed(dice: np.random.Generator) -> Specimen:
    inputs = int(dice.choice([6, 20, 64, 128]))
    widths, kind = _widths(dice), ("layer", "group", "batch")[dice.integers(3)]
    norms: dict[str, Callable[[int], nn.Module]] = {
        "layer": nn.LayerNorm,
        "group": lambda w: nn.GroupNorm(2, w),
        "batch": nn.BatchNorm1d,
    }
    name = f"dense {inputs} {widths} {kind} norm"
    return _of_dense(name, inputs, widths, lambda w: [norms[kind](w), nn.ReLU()])


def _convolving(dice: np.random.Generator) -> Specimen:
    side, channels = int(dice.choice([8, 12, 16, 28])), int(dice.choice([1, 3]))
    first, second = int(dice.choice([4, 8, 16])), int(dice.choice([8, 16, 32]))
    norm = bool(dice.integers(2))

    def make() -> nn.Module:
        layers: list[nn.Module] = [nn.Conv2d(channels, first, 3, padding=1)]
        layers += [nn.GroupNorm(2, first)] if norm else []
        layers += [nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(first, second, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(second * (side // 4) ** 2, 32)]
        return nn.Sequential(*layers, nn.ReLU(), nn.Linear(32, CLASSES))

    return Specimen(
        f"cnn {channels}x{side}x{side} {first} {second}{' group norm' if norm else ''}",
        make,
        (channels, side, side),
    )


def _signals(dice: np.random.Generator) -> Specimen:
    length, width = int(dice.choice([16, 32, 64])), int(dice.choice([4, 8, 16]))
    return Specimen(
        f"conv1d {length} {width}",
        lambda: nn.Sequential(
            *(nn.Conv1d(2, width, 5, padding=2), nn.ReLU(), nn.AvgPool1d(2), nn.Flatten()),
            nn.Linear(width * length // 2, CLASSES),
        ),
        (2, length),
    )


def _recurrent(dice: np.random.Generator) -> Specimen:
    kind = ("RNN", "GRU", "LSTM")[dice.integers(3)]
    length, inputs = int(dice.choice([5, 10, 20])), int(dice.choice([4, 8, 16]))
    width, depth = int(dice.choice([8, 16, 32, 64])), int(dice.integers(1, 3))
    return Specimen(
        f"{kind} {length}x{inputs} {width} depth {depth}",
        lambda: Sequence(kind, inputs, width, depth),
        (length, inputs),
    )


def _words(dice: np.random.Generator) -> Specimen:
    words, width = int(dice.choice([50, 200, 1000])), int(dice.choice([8, 16, 32]))
    length, bag = int(dice.choice([8, 16, 32])), bool(dice.integers(2))
    return Specimen(
        f"{'bag' if bag else 'embedding'} {words}x{width} of {length}",
        lambda: Bag(words, width) if bag else Tokens(words, width, None, width),
        (length,),
        words=words,
    )


def _residual(dice: np.random.Generator) -> Specimen:
    inputs, width = int(dice.choice([20, 64])), int(dice.choice([16, 32, 64, 128]))
    depth, norm = int(dice.integers(1, 5)), bool(dice.integers(2))
    return Specimen(
        f"residual {inputs} {width} depth {depth}{' layer norm' if norm else ''}",
        lambda: ResidualDense(inputs, width, depth, norm),
        (inputs,),
    )


def _odd(dice: np.random.Generator) -> Specimen:
    inputs, widths, what = 32, _widths(dice), ("unused", "heated", "frozen")[dice.integers(3)]

    def make() -> nn.Module:
        inner = _dense(inputs, widths, lambda _w: [nn.ReLU()])
        if what == "unused":
            return Unused(inner)
        if what == "heated":
            return Heated(inner)
        inner[0].requires_grad_(False)
        return inner

    return Specimen(f"{what} {widths}", make, (inputs,))


def _attending(dice: np.random.Generator) -> Specimen:
    width, heads = int(dice.choice([16, 32, 64])), int(dice.choice([2, 4]))
    length = int(dice.choice([4, 8, 16]))
    return Specimen(
        f"attention {length}x{width} {heads} heads",
        lambda: Attending(width, heads),
        (length, width),
    )


def _larger(dice: np.random.Generator) -> Specimen:
    side, first, second = int(dice.choice([16, 28, 32])), 32, int(dice.choice([32, 64]))
    flat = second * (side // 2 - 2) ** 2
    return Specimen(
        f"larger cnn 3x{side}x{side} {first} {second}",
        lambda: nn.Sequential(
            *(nn.Conv2d(3, first, 3), nn.ReLU(), nn.Conv2d(first, second, 3), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(flat, 128), nn.ReLU()),
            nn.Linear(128, CLASSES),
        ),
        (3, side, side),
    )


def _wide(dice: np.random.Generator) -> Specimen:
    inputs = int(dice.choice([64, 784, 3072]))
    widths = [int(dice.choice([128, 200, 512, 1000])) for _ in range(dice.integers(1, 3))]
    act = (nn.ReLU, nn.ReLU, nn.Tanh, nn.LeakyReLU)[dice.integers(4)]
    name = f"wide {inputs} {widths} {act.__name__}"
    return _of_dense(name, inputs, widths, lambda _: [act()])


FAMILIES: tuple[Callable[[np.random.Generator], Specimen], ...] = (
    _chain, _other_dense, _normed, _convolving, _recurrent,
    _words, _residual, _odd, _attending, _signals, _larger, _wide,
)  # fmt: skip
