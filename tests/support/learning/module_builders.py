"""Modules to train, built of parts, and the ways in which the tests train them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from clients import CLASSES, FEATURES, Clients, numbers
from fedpilot.federated import models
from fedpilot.federated.core.state import Array

SIZES = (9, 3, 0, 6, 1, 4)
TOTAL = sum(SIZES)
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "learning_rate": 0.05},
    "momentum": {
        "optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.01,
        "nesterov": True,
    },
    "adam": {"optimizer": "adam", "learning_rate": 0.01, "max_gradient_norm": 0.3},
    "adamw, proximal": {
        "optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1, "proximal_mu": 0.5
    },
}  # fmt: skip

Make = Callable[[], nn.Module]


def builtin(name: str, shape: tuple[int, ...], **options: Any) -> Make:
    return lambda: models.build(name, options, shape, CLASSES)


def layers(*made: Make) -> Make:
    return lambda: nn.Sequential(*(make() for make in made))


def linear(of: int = FEATURES, to: int = CLASSES, **options: Any) -> Make:
    return lambda: nn.Linear(of, to, **options)


class Code(nn.Module):
    """Parts by name, and a forward pass over them."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def code(run: Callable[[Any, Tensor], Tensor], **parts: Make) -> Make:
    return lambda: Code(run, **{name: make() for name, make in parts.items()})


def tied() -> nn.Module:
    module = nn.Sequential(linear(FEATURES, FEATURES)(), nn.Tanh(), linear(FEATURES, FEATURES)())
    module[2].weight = module[0].weight
    return module


@dataclass(frozen=True)
class Case:
    """A model and its samples, for clients of unequal sizes."""

    make: Make
    x: Callable[[], Array] = lambda: numbers(TOTAL)

    def clients(
        self,
        *,
        double: bool = True,
        device: str = "cpu",
        all_rows: bool | None = None,
        **training: Any,
    ) -> Clients:
        return Clients(
            self.make,
            x=self.x(),
            sizes=SIZES,
            training=training,
            double=double,
            device=device,
            all_rows=all_rows,
        )
