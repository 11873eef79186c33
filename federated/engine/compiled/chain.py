"""Finds modules that are chains of dense layers, so that one kernel can train them.

A chain is `nn.Linear` layers and simple activations, one after the other, and ends with a linear
layer whose outputs are the logits. Only the code that torch.fx traces counts.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace

import torch
from torch import fx, nn

from ..stacking import NotStackable, trace
from ..stacking.folded import name_of
from .dense import NONE, RELU, SIGMOID, TANH

_LAYERS: dict[type[nn.Module], int] = {nn.ReLU: RELU, nn.Tanh: TANH, nn.Sigmoid: SIGMOID}
_FUNCTIONS = {"relu": RELU, "tanh": TANH, "sigmoid": SIGMOID}
"""By their names in torch, torch.nn.functional and tensors."""


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer of a chain, and the activation of its outputs."""

    path: str
    inputs: int
    outputs: int
    bias: bool
    activation: int


def chain_of(module: nn.Module, input_shape: tuple[int, ...]) -> tuple[Dense, ...]:
    """The layers on the way of a sample of this shape; NotStackable if they are no chain."""
    width, flat = math.prod(input_shape), len(input_shape) == 1
    chain: list[Dense] = []
    for what, layer in _steps(module):
        activation = _activation(what, layer)
        if type(layer) is nn.Linear:
            if layer.in_features != width or not flat:
                raise NotStackable(f"{what} (Linear) is not fed whole samples in one dimension")
            width = layer.out_features
            chain.append(Dense(what, layer.in_features, width, layer.bias is not None, NONE))
        elif activation is not None:
            if not chain or chain[-1].activation != NONE:
                raise NotStackable(f"{what} follows no linear layer")
            chain[-1] = replace(chain[-1], activation=activation)
        elif _flattens(what, layer):
            flat = True
        elif not _does_nothing(layer):
            raise NotStackable(f"{what} is no part of a chain of dense layers")
    if not chain or chain[-1].activation != NONE:
        raise NotStackable("its last step is no linear layer")
    _check_weights(module, chain)
    return tuple(chain)


Step = tuple[str, nn.Module | None]


def _steps(module: nn.Module) -> list[Step]:
    """The steps from input to output; NotStackable if they are no sequence."""
    if type(module) is nn.Linear:
        return [("", module)]
    steps: list[Step] = []
    now: fx.Node | None = None
    for node in trace(module).nodes:
        if node.op == "placeholder" and now is None:
            now = node
        elif node.op == "output" and node.args == (now,):
            return steps
        elif _asks_for_the_shape(node):
            continue
        elif not node.args or node.args[0] is not now:
            raise NotStackable("it is more than one layer after the other")
        else:
            layer = module.get_submodule(str(node.target)) if node.op == "call_module" else None
            steps.append((name_of(node.target), layer))
            now = node
    raise NotStackable("its output is not what its last layer gives")


def _asks_for_the_shape(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target == "size"
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] == "shape"
    return node.target is len or (
        node.target is operator.getitem
        and isinstance(node.args[0], fx.Node)
        and _asks_for_the_shape(node.args[0])
    )


def _activation(what: str, layer: nn.Module | None) -> int | None:
    if layer is not None:
        return _LAYERS.get(type(layer))
    return _FUNCTIONS.get(what)


def _flattens(what: str, layer: nn.Module | None) -> bool:
    """Whether a step may flatten; the width of the next layer tells whether it did."""
    if layer is not None:
        return type(layer) is nn.Flatten
    return what in ("flatten", "view", "reshape")


def _does_nothing(layer: nn.Module | None) -> bool:
    return type(layer) is nn.Identity or (type(layer) is nn.Dropout and layer.p == 0.0)


def _check_weights(module: nn.Module, chain: list[Dense]) -> None:
    """Raise NotStackable unless the chain's weights are all there are, and all are trained."""
    mine = [
        f"{dense.path}.{name}" if dense.path else name
        for dense in chain
        for name in (("weight", "bias") if dense.bias else ("weight",))
    ]
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    names += [name for name, _ in module.named_buffers()]
    if sorted(mine) != sorted(names) or len(names) != len(list(module.parameters())):
        raise NotStackable("it has more weights than those of its chain, or shares some")
    types = {parameter.dtype for parameter in module.parameters()}
    if types not in ({torch.float32}, {torch.float64}):
        raise NotStackable("its weights are not all of one type, float32 or float64")
    if not all(parameter.requires_grad for parameter in module.parameters()):
        raise NotStackable("some of its weights are frozen")
    if any(_has_hooks(layer) for layer in module.modules()):
        raise NotStackable("it has hooks")


def _has_hooks(layer: nn.Module) -> bool:
    return any(
        (
            layer._forward_hooks,
            layer._forward_pre_hooks,
            layer._backward_hooks,
            layer._backward_pre_hooks,
            "forward" in vars(layer),
            *(parameter._backward_hooks for parameter in layer.parameters(recurse=False)),
        )
    )
