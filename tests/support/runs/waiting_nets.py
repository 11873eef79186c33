"""A model of a user's own that waits where others compute: its rounds last, and cost little.

The tests' process imports it; sites get it with a run, from beside the config.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn


class Waits(nn.Module):
    """Two layers. What it waits for changes no bit."""

    def __init__(
        self, input_shape: Sequence[int], num_classes: int, *, step_s: float = 0.0, gate: str = ""
    ) -> None:
        """A step of training takes `step_s` longer, and begins once the file `gate` is there."""
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(input_shape[0], 32), nn.ReLU(), nn.Linear(32, num_classes)
        )
        self._step_s, self._gate = step_s, gate

    def forward(self, inputs: Tensor) -> Tensor:
        """The scores of each class."""
        if self.training:
            time.sleep(self._step_s)
            while self._gate and not Path(self._gate).exists():
                time.sleep(0.1)
        scores: Tensor = self.layers(inputs)
        return scores
