"""The global model of a federation, after a round and now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.algorithm import ServerState
from ...core.state import Array, State, digest

if TYPE_CHECKING:
    from torch import nn

    from ...config.schema import RunConfig
    from ...prepare.inputs.run_inputs import SiteData


@dataclass(frozen=True, slots=True)
class GlobalModel:
    """The federation's model after a round."""

    round_number: int
    state: Mapping[str, Array]
    memory: ServerState
    digest: str


class CurrentModel:
    """The current global model of a federation: clients train the round after it."""

    def __init__(self, initial: State) -> None:
        self.now = GlobalModel(0, initial, {}, digest(initial))


def as_module(state: State, config: RunConfig, data: SiteData) -> nn.Module:
    """A state as a new PyTorch module; `data` gives the shape of a sample."""
    import torch

    from ...engine.training.modules import fitted
    from ...models import build

    model = config.model
    built = build(model.model_type, model.options, data.input_shape, data.num_classes)
    module = fitted(built, data.x.dtype)
    module.load_state_dict({name: torch.tensor(array) for name, array in state.items()})
    return module
