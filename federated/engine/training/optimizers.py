"""A client's optimizer, or that of many clients in step, by the functional forms of `torch.optim`.

Its classes cost more than a step of a small model. A stacked tensor is moved as a whole: all
formulas are elementwise, so that each client's row moves as it would alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from ...config.schema import Training
from .norms import along, norms_of


def is_plain(training: Training) -> bool:
    """Whether a step is no more than rate x gradient."""
    return training.optimizer == "sgd" and not (
        training.momentum
        or training.weight_decay
        or training.proximal_mu
        or training.max_gradient_norm
    )


TINY = 1e-6


class LocalOptimizer:
    """Moves named tensors by their gradients; `begin` clears its memory and sets the rate.

    With `proximal_mu` the gradients are FedProx's: each has the pull towards where its tensor began
    (Li et al. 2020, "Federated optimization in heterogeneous networks"). With `max_gradient_norm`
    those of each client are then clipped. From step to step a tensor may lose rows at its end
    (clients that are done), and its memory with it. Tensors without a gradient stay as they are, as
    in `torch.optim`.
    """

    BETA1, BETA2, EPS = 0.9, 0.999, 1e-8

    def __init__(self, training: Training, *, stacked: bool) -> None:
        """With `stacked`, each row of a tensor belongs to one client."""
        self._training = training
        self._stacked = stacked
        self._rate = training.learning_rate
        self._first: dict[str, Tensor] = {}
        """Momentum, or Adam's first moment."""
        self._second: dict[str, Tensor] = {}
        self._steps: dict[str, Tensor] = {}
        self._origin: dict[str, Tensor] = {}
        """With `proximal_mu`: the tensors as they began."""

    def begin(self, tensors: Mapping[str, Tensor], rate: float) -> None:
        """Clear the memory of earlier steps; the tensors begin where they are."""
        self._rate = rate
        self._first, self._second, self._steps = {}, {}, {}
        if self._training.proximal_mu:
            self._origin = {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def step(self, tensors: Mapping[str, Tensor], gradients: Mapping[str, Tensor | None]) -> None:
        """Move the tensors in place by their gradients."""
        reached = {name: g for name, g in gradients.items() if g is not None}
        if not reached:
            return
        moved = [tensors[name].detach() for name in reached]
        with torch.no_grad():
            if self._training.proximal_mu:
                reached = self._pulled(moved, reached)
            if (most := self._training.max_gradient_norm) is not None:
                reached = _clipped(reached, most, stacked=self._stacked)
            if self._training.optimizer == "sgd":
                self._sgd(list(reached), moved, list(reached.values()))
            else:
                self._adam(list(reached), moved, list(reached.values()))

    def _pulled(self, moved: list[Tensor], gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The gradients, each with the pull back to where its tensor began."""
        mu = self._training.proximal_mu
        return {
            name: gradient.add(tensor - self._rows(name, tensor), alpha=mu)
            for (name, gradient), tensor in zip(gradients.items(), moved, strict=True)
        }

    def _rows(self, name: str, tensor: Tensor) -> Tensor:
        """Where the rows began that a tensor still has."""
        origin = self._origin[name]
        return origin[: len(tensor)] if tensor.ndim else origin

    def _sgd(self, names: list[str], moved: list[Tensor], gradients: list[Tensor]) -> None:
        velocities: list[Tensor | None] = [
            self._first[name][: len(tensor)] if name in self._first and tensor.ndim
            else self._first.get(name)
            for name, tensor in zip(names, moved, strict=True)
        ]  # fmt: skip
        sgd(
            moved,
            gradients,
            velocities,
            foreach=len(moved) > 1,
            weight_decay=self._training.weight_decay,
            momentum=self._training.momentum,
            lr=self._rate,
            dampening=0.0,
            nesterov=self._training.nesterov,
            maximize=False,
        )
        if self._training.momentum:
            for name, velocity in zip(names, velocities, strict=True):
                if velocity is not None:
                    self._first[name] = velocity

    def _adam(self, names: list[str], moved: list[Tensor], gradients: list[Tensor]) -> None:
        for name, tensor in zip(names, moved, strict=True):
            if name not in self._steps:
                self._first[name] = torch.zeros_like(tensor)
                self._second[name] = torch.zeros_like(tensor)
                self._steps[name] = torch.tensor(0.0)
            elif tensor.ndim and len(tensor) < len(self._first[name]):
                self._first[name] = self._first[name][: len(tensor)]
                self._second[name] = self._second[name][: len(tensor)]
        adam(
            moved,
            gradients,
            [self._first[name] for name in names],
            [self._second[name] for name in names],
            [],
            [self._steps[name] for name in names],
            foreach=len(moved) > 1,
            amsgrad=False,
            beta1=self.BETA1,
            beta2=self.BETA2,
            lr=self._rate,
            weight_decay=self._training.weight_decay,
            decoupled_weight_decay=self._training.optimizer == "adamw",
            eps=self.EPS,
            maximize=False,
        )


def _clipped(gradients: Mapping[str, Tensor], most: float, *, stacked: bool) -> dict[str, Tensor]:
    """The gradients, scaled down client by client where the norm of all is above `most`."""
    rows = {name: each if stacked else each.unsqueeze(0) for name, each in gradients.items()}
    factors = (most / (norms_of(rows.values()) + TINY)).clamp(max=1.0)  # as PyTorch clips
    found = {name: each * along(factors, each).to(each.dtype) for name, each in rows.items()}
    return found if stacked else {name: each.squeeze(0) for name, each in found.items()}
