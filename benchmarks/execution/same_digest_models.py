"""Models of many kinds, for `same_digest.py`: what is folded, mapped, or trained one by one."""

from __future__ import annotations

import math

from torch import Tensor, nn
from zoo import Bag, Sequence, Unused

Shape = tuple[int, ...]


def leaky_mlp(input_shape: Shape, num_classes: int) -> nn.Module:
    """Is no chain that can be compiled."""
    return nn.Sequential(
        nn.Linear(math.prod(input_shape), 32), nn.LeakyReLU(), nn.Linear(32, num_classes)
    )


def unused_parameter(input_shape: Shape, num_classes: int) -> nn.Module:
    """Has parameters that its code never uses."""
    return Unused(leaky_mlp(input_shape, num_classes))


class _Words(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (16 * x).long().clamp(0, 16)


def embedding_bag() -> nn.Module:
    """Takes grey values for words."""
    return nn.Sequential(_Words(), Bag(17, 16))


def gru() -> nn.Module:
    """Reads an image row by row."""
    return nn.Sequential(nn.Unflatten(1, (8, 8)), Sequence("GRU", 8, 16, 1))


def cnn(input_shape: Shape, num_classes: int) -> nn.Module:
    """Two convolutions."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, num_classes),
    )  # fmt: skip
