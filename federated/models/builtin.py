"""The built-in models: small enough for a laptop, known from the papers of the field.

They have no batch statistics, which average badly, and are sequences of PyTorch's layers where
possible, so that clients can train side by side. Inputs have the shape (batch, *input_shape),
outputs are logits of shape (batch, num_classes).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from .errors import ModelError

Shape = tuple[int, ...]


def logistic_regression(input_shape: Shape, num_classes: int) -> nn.Module:
    """Multinomial logistic regression; inputs of any shape are flattened."""
    return nn.Sequential(*_flatten(input_shape), nn.Linear(math.prod(input_shape), num_classes))


def mlp(input_shape: Shape, num_classes: int, *, hidden: Sequence[int] = (128,)) -> nn.Module:
    """Fully connected layers with ReLU between them; inputs of any shape are flattened.

    `hidden: [200, 200]` is the "2NN" of McMahan et al. 2017.
    """
    if any(width < 1 for width in hidden):
        raise ModelError("mlp", f"hidden layers have 1 unit at least, found {list(hidden)}")
    widths = [math.prod(input_shape), *hidden]
    layers = _flatten(input_shape)
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))


def cnn(input_shape: Shape, num_classes: int, *, dropout: float = 0.0) -> nn.Module:
    """Two 3x3 convolutions, one pooling, one hidden layer: the CNN of federated benchmarks.

    Reddi et al. 2021, "Adaptive federated optimization" (EMNIST); Granqvist et al. 2024,
    "pfl-research" (CIFAR-10). `dropout` in [0, 1) follows the pooling and the hidden layer. Images
    are 6 by 6 at least.
    """
    channels, height, width = _image("cnn", input_shape, smallest=6)
    if not 0 <= dropout < 1:
        raise ModelError("cnn", f"dropout is in [0, 1), found {dropout}")
    pooled = ((height - 4) // 2) * ((width - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        *dropout_layers(dropout),
        nn.Flatten(),
        nn.Linear(64 * pooled, 128),
        nn.ReLU(),
        *dropout_layers(dropout),
        nn.Linear(128, num_classes),
    )


def lenet(input_shape: Shape, num_classes: int) -> nn.Module:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max pooling, for images of 8 by 8 and more.

    The second convolution pads images that are too small for it (sides below 12).
    """
    channels, height, width = _image("lenet", input_shape, smallest=8)
    padding = (0 if height >= 12 else 2, 0 if width >= 12 else 2)
    pooled = [(height // 2 + 2 * padding[0] - 4) // 2, (width // 2 + 2 * padding[1] - 4) // 2]
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * math.prod(pooled), 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, num_classes),
    )


def resnet18(
    input_shape: Shape, num_classes: int, *, groups: int = 2, width: int = 64
) -> nn.Module:
    """ResNet-18 (He et al. 2016) with GroupNorm instead of BatchNorm, for small images.

    Hsieh et al. 2020, "The non-IID data quagmire of decentralized machine learning": averaged batch
    statistics fail on skewed labels, GroupNorm has none. The stem is one 3x3 convolution, without
    pooling, as usual for CIFAR. `width` is the number of channels of the first stage, a multiple of
    `groups`. Images are 8 by 8 at least.
    """
    channels, _, _ = _image("resnet18", input_shape, smallest=8)
    if groups < 1 or width < 1 or width % groups:
        raise ModelError("resnet18", f"width is a multiple of groups, found {width} and {groups}")
    layers: list[nn.Module] = [
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.GroupNorm(groups, width),
        nn.ReLU(),
    ]
    before = width
    for stage in range(4):
        after = width << stage
        layers += [
            _ResidualBlock(before, after, stride=1 if stage == 0 else 2, groups=groups),
            _ResidualBlock(after, after, stride=1, groups=groups),
        ]
        before = after
    return nn.Sequential(*layers, _SpatialMean(), nn.Linear(before, num_classes))


class _ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a skip connection."""

    def __init__(self, before: int, after: int, *, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, after)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut.append(nn.Conv2d(before, after, 1, stride=stride, bias=False))
            self.shortcut.append(nn.GroupNorm(groups, after))

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class _SpatialMean(nn.Module):
    """Mean over height and width; adaptive pooling has no deterministic gradient on CUDA."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(-2, -1))


def _flatten(input_shape: Shape) -> list[nn.Module]:
    return [] if len(input_shape) == 1 else [nn.Flatten()]


def dropout_layers(rate: float) -> list[nn.Module]:
    return [nn.Dropout(rate)] if rate else []


def _image(name: str, input_shape: Shape, *, smallest: int) -> tuple[int, int, int]:
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise ModelError(
            name,
            f"it needs images of shape (channels, height, width) with sides of {smallest} at "
            f"least, the data have the shape {tuple(input_shape)}; `mlp` takes any shape",
        )
    channels, height, width = input_shape
    return channels, height, width
