"""The peers' models, of the same shapes as fedpilot's built-ins, and their local training."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional
from workload import BATCH, CLASSES, TOKENS, VOCABULARY


def build_model(name: str) -> nn.Module:
    """The model of a workload, the same weights every time."""
    torch.manual_seed(0)
    return {"mlp": mlp, "cnn": cnn, "resnet18": ResNet18, "transformer": Transformer}[name]()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def cnn() -> nn.Module:
    """The CNN of pfl-research's CIFAR10 benchmark, without dropout."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Linear(128, CLASSES)),
    )


class ConvolutionBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.GroupNorm(2, after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.GroupNorm(2, after),
        )
        self.around = nn.Sequential()
        if before != after:
            self.around.append(nn.Conv2d(before, after, 1, stride, bias=False))
            self.around.append(nn.GroupNorm(2, after))

    def forward(self, x):
        return functional.relu(self.body(x) + self.around(x))


class ResNet18(nn.Module):
    """ResNet-18 for small images, with GroupNorm of two groups."""

    def __init__(self) -> None:
        super().__init__()
        widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
        blocks = (ConvolutionBlock(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths))
        stem = (nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.GroupNorm(2, 64), nn.ReLU())
        self.body = nn.Sequential(*stem, *blocks)
        self.head = nn.Linear(512, CLASSES)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        parts = self.inward(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts)
        return self.outward(mixed.transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.body = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.body(self.norm2(x))


class Transformer(nn.Module):
    """An encoder that classifies sequences of tokens by the mean of their outputs."""

    def __init__(self, layers: int = 4, width: int = 192, heads: int = 6) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(0.02 * torch.randn(TOKENS, width))
        self.layers = nn.Sequential(*(EncoderLayer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.head(self.norm(self.layers(self.tokens(x) + self.places)).mean(1))


def train(model: nn.Module, x, y, rate: float) -> None:
    """One epoch of SGD over a client's samples, in order, as tutorials write it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for batch_x, batch_y in batches(x, y):
        optimizer.zero_grad()
        functional.cross_entropy(model(batch_x), batch_y).backward()
        optimizer.step()


def train_lean(model: nn.Module, x, y, rate: float) -> None:
    """The same steps with as little around them as eager PyTorch allows."""
    parameters = list(model.parameters())
    for batch_x, batch_y in batches(x, y):
        loss = functional.cross_entropy(model(batch_x), batch_y)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-rate)


def batches(x, y):
    """Pairs of tensors, the last pair may be smaller."""
    return zip(torch.from_numpy(x).split(BATCH), torch.from_numpy(y).split(BATCH), strict=True)
