"""MappedModule: any module by `torch.func.vmap`, its parameters stacked.

Slower than folding, but any code may use weights. The first run fails for what vmap refuses:
branches on values, buffers that change, random numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ..training.samples import silence
from .protocol import NotStackable


class MappedModule:
    """A Stacked module by vmap."""

    random = False

    def __init__(self, module: nn.Module, capacity: int) -> None:
        silence()
        for path, layer in module.named_modules():
            if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
                raise NotStackable(f"{path} (Embedding) has padding_idx, which vmap overlooks")
        self._module = copy.deepcopy(module).train()
        first = {id(parameter): name for name, parameter in self._module.named_parameters()}
        self._names = {
            f"{path}.{local}" if path else local: first[id(parameter)]
            for path, layer in self._module.named_modules()
            for local, parameter in layer.named_parameters(recurse=False, remove_duplicate=False)
        }
        self._frozen = {
            name: parameter.detach()
            for name, parameter in self._module.named_parameters()
            if not parameter.requires_grad
        }
        self.rows = {
            name: parameter.detach().new_empty((capacity, *parameter.shape))
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        self.leaves: dict[str, Tensor] = {}
        self._forward = vmap(self._one, randomness="error")

    @property
    def fixed(self) -> Mapping[str, Tensor]:
        """Frozen parameters and buffers."""
        return self._frozen | dict(self._module.named_buffers(remove_duplicate=False))

    def step_at(self, rate: float) -> None:
        """Do nothing: an optimizer takes the steps."""

    def seed(self, generators: Sequence[torch.Generator]) -> None:
        """Do nothing: random numbers are refused."""

    def forward(self, clients: int, x: Tensor) -> Tensor:
        """Run the module for all clients at once."""
        self.leaves = {
            name: rows[:clients].detach().requires_grad_() for name, rows in self.rows.items()
        }
        try:
            # vmap would multiply a weight shared by all with all clients at once, whose number then
            # decides bits on some processors.
            one_each = {n: p.expand(clients, *p.shape) for n, p in self._frozen.items()}
            parameters = {**self.leaves, **one_each}
            out: Tensor = self._forward(parameters, x.reshape(clients, -1, *x.shape[1:]))
        except (RuntimeError, ValueError, NotImplementedError) as error:
            raise NotStackable(f"vmap: {str(error).splitlines()[0][:120]}") from error
        return out.flatten(0, 1)

    def _one(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        own = {name: parameters[row] for name, row in self._names.items()}
        # `tie_weights` would restore a layer with two names wrongly.
        out: Tensor = functional_call(self._module, own, (x,), tie_weights=False)
        return out
