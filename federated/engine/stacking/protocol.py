"""The interface of a stacked module, folded or mapped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor


class NotStackable(Exception):
    """A module cannot train several clients at once; users see the reason."""


class Stacked(Protocol):
    """A module with one row of every trained parameter per client."""

    @property
    def rows(self) -> Mapping[str, Tensor]:
        """The trained parameters by their names, each of shape (capacity, *shape)."""

    @property
    def leaves(self) -> Mapping[str, Tensor]:
        """From the last forward pass: prefixes of the rows that need gradients."""

    @property
    def fixed(self) -> Mapping[str, Tensor]:
        """Frozen parameters and buffers, which all clients share; copied into in place."""

    def forward(self, clients: int, x: Tensor) -> Tensor:
        """Outputs (clients * batch, ...) of the first `clients` rows for x of that length.

        Samples lie client after client, equally many of each.
        """

    def step_at(self, rate: float) -> None:
        """Set the learning rate of backward passes that are themselves the step of SGD."""

    def seed(self, generators: Sequence[torch.Generator]) -> None:
        """Set the generators of each row's random numbers (dropout) until the next call."""

    @property
    def random(self) -> bool:
        """Whether it draws random numbers."""
