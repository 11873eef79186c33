"""Models, optimizers and clients that the tests of training share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clients import CLASSES, FEATURES, Clients, dense

OF_PYTORCH = ("sequential", "folded", "mapped")
"""These take tied and frozen weights too."""
KINDS = (*OF_PYTORCH, "compiled")
Make = Callable[[], nn.Module]


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


class Shared(nn.Module):
    """Has one module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm1d(FEATURES)
        self.second = self.first
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x)))


class Tied(nn.Module):
    """Has one parameter under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


MODELS: dict[str, tuple[Make, tuple[str, ...]]] = {
    "dense": (dense, KINDS),
    "tied weights": (Tied, OF_PYTORCH),
    "dropout": (with_dropout, ("sequential", "folded")),
    "batch norm": (with_batch_norm, ("sequential",)),
    "a module under two names": (Shared, ("sequential",)),
    "buffers that are replaced": (Reassigning, ("sequential",)),
    "buffers that are not saved": (Remembering, ("sequential",)),
    "inputs that are changed in place": (InPlace, ("sequential", "folded")),
}
MADE = [pytest.param(make, id=name) for name, (make, _) in MODELS.items()]
TRAINED = [
    pytest.param(make, kind, id=f"{name}, {kind}")
    for name, (make, kinds) in MODELS.items()
    for kind in kinds
]
OPTIMIZERS = [
    pytest.param({"optimizer": "sgd"}, id="sgd"),
    pytest.param(
        {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
        id="momentum",
    ),
    pytest.param({"optimizer": "adam", "learning_rate": 0.01}, id="adam"),
    pytest.param(
        {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1, "proximal_mu": 0.5},
        id="adamw, proximal",
    ),
]
LARGE, OTHER, SMALL = 0, 1, 2
SIZES = (23, 23, 8)


def clients(make: Make = dense, sizes: tuple[int, ...] = SIZES, **training: Any) -> Clients:
    return Clients(make, sizes=sizes, training=training)
