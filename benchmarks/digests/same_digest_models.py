"""Models of many kinds, for `same_digest.py`: what is folded, mapped, or trained one by one."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]


def leaky_mlp(input_shape: Shape, num_classes: int) -> nn.Module:
    """Is no chain that can be compiled."""
    return nn.Sequential(
        nn.Linear(math.prod(input_shape), 32), nn.LeakyReLU(), nn.Linear(32, num_classes)
    )


class _Unused(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.spare = inner, nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


def unused_parameter(input_shape: Shape, num_classes: int) -> nn.Module:
    """Has a parameter that its code never uses."""
    return _Unused(leaky_mlp(input_shape, num_classes))


class _Bag(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.bag, self.top = nn.EmbeddingBag(17, 16), nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.top(self.bag((16 * x).long().clamp(0, 16)))
        return out


def embedding_bag(input_shape: Shape, num_classes: int) -> nn.Module:
    """Takes grey values for words."""
    return _Bag(num_classes)


class _Recurrent(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.gru, self.top = nn.GRU(8, 16, batch_first=True), nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.top(self.gru(x.unflatten(1, (8, 8)))[0][:, -1])
        return out


def gru(input_shape: Shape, num_classes: int) -> nn.Module:
    """Reads an image row by row."""
    return _Recurrent(num_classes)


def cnn(input_shape: Shape, num_classes: int) -> nn.Module:
    """Two convolutions."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, num_classes),
    )  # fmt: skip
