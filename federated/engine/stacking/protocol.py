"""What a stacked module is, whichever way it computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor


class NotStackable(Exception):
    """Why a module cannot train several clients at once; the text is said to the user."""


class Stacked(Protocol):
    """A module with one row of every trained parameter per client."""

    @property
    def rows(self) -> Mapping[str, Tensor]:
        """The trained parameters by their names, each of shape (capacity, *shape)."""

    @property
    def leaves(self) -> Mapping[str, Tensor]:
        """Of the last forward pass: prefixes of the rows whose gradients are asked for."""

    @property
    def fixed(self) -> Mapping[str, Tensor]:
        """Frozen parameters and buffers, which all clients share; copied into in place."""

    def forward(self, clients: int, x: Tensor) -> Tensor:
        """Outputs (clients * batch, ...) of the first `clients` rows for x of that length.

        Samples lie client after client, equally many of each.
        """

    def seed(self, generators: Sequence[torch.Generator]) -> None:
        """Where the random numbers of each row come from (dropout), until the next call."""

    @property
    def random(self) -> bool:
        """Whether it draws random numbers at all."""
