"""The global model of a federation: what it is after a round, and which one it stands at now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...core.algorithm import ServerState
from ...core.state import Array, State, digest
from ...errors import FederatedError

if TYPE_CHECKING:
    from torch import nn

    from ...config.schema import RunConfig
    from ...prepare.inputs.run_inputs import SiteData


@dataclass(frozen=True, slots=True)
class GlobalModel:
    """The federation's model after some round."""

    round_number: int
    state: Mapping[str, Array]
    memory: ServerState
    digest: str


class CurrentModel:
    """The global model that a federation stands at: clients train the round after it."""

    def __init__(self, initial: State) -> None:
        """Stand at the model of round 0."""
        self._initial = initial
        self.now = GlobalModel(0, initial, {}, digest(initial))

    def or_other(self, model: State | None) -> tuple[str, State]:
        """The digest and the tensors of `model`, or of the global model.

        FederatedError for a state that has other tensors than the federation's model.
        """
        if model is None:
            return self.now.digest, self.now.state
        for name in sorted(self._initial.keys() | model.keys()):
            wanted, found = self._initial.get(name), model.get(name)
            if _kind(wanted) != _kind(found):
                raise FederatedError(
                    f"this is not the state of the federation's model: {name!r} is {_kind(found)}, "
                    f"wanted {_kind(wanted)}"
                )
        return digest(model), model


def as_module(state: State, config: RunConfig, data: SiteData) -> nn.Module:
    """A state as a PyTorch module of its own; `data` says the shape of a sample."""
    import torch

    from ...engine.training.modules import fitted
    from ...models import build

    model = config.model
    built = build(model.model_type, model.options, data.input_shape, data.num_classes)
    module = fitted(built, data.x.dtype)
    module.load_state_dict({name: torch.tensor(array) for name, array in state.items()})
    return module


def _kind(array: object) -> str:
    """What an entry of a state is, in words."""
    if array is None:
        return "nothing"
    if not isinstance(array, np.ndarray):
        return f"no NumPy array but {type(array).__name__}"
    return f"{array.dtype} of shape {array.shape}"
