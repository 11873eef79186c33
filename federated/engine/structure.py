"""Derives a model's cost facts from its structure, by one forward pass without gradients.

Each layer of PyTorch counts as one operation, and so does each function of PyTorch that other code
calls. So the facts are the same on every machine.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.execution.facts import Layer, LayerKind, ModelFacts
from .compiled.chain import chain_of
from .stacking import NotStackable

SAMPLES = 2
"""In the forward pass."""

_LAYERS: tuple[tuple[LayerKind, tuple[type[nn.Module], ...]], ...] = (
    (LayerKind.LINEAR, (nn.Linear, nn.Bilinear)),
    (LayerKind.CONVOLUTION, (nn.modules.conv._ConvNd,)),
    (
        LayerKind.NORM,
        (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm),
    ),
    (LayerKind.EMBEDDING, (nn.Embedding,)),
    (LayerKind.BAG, (nn.EmbeddingBag,)),
    (LayerKind.RECURRENT, (nn.RNNBase, nn.RNNCellBase)),
    (LayerKind.ATTENTION, (nn.MultiheadAttention,)),
    (
        LayerKind.POOLING,
        (
            nn.modules.pooling._MaxPoolNd,
            nn.modules.pooling._AvgPoolNd,
            nn.modules.pooling._AdaptiveMaxPoolNd,
            nn.modules.pooling._AdaptiveAvgPoolNd,
        ),
    ),
    (LayerKind.DROPOUT, (nn.modules.dropout._DropoutNd,)),
    (
        LayerKind.SMOOTH,
        (
            *(nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.SELU, nn.CELU, nn.Softplus),
            *(nn.Mish, nn.Softmax, nn.LogSoftmax, nn.LogSigmoid, nn.Softsign),
        ),
    ),
    (LayerKind.VIEW, (nn.Flatten, nn.Unflatten, nn.Identity)),
)
_FUNCTIONS: Mapping[str, LayerKind] = {
    name: kind
    for kind, names in {
        LayerKind.LINEAR: "linear matmul __matmul__ __rmatmul__ mm bmm addmm baddbmm einsum "
        "bilinear",
        LayerKind.CONVOLUTION: "conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
        "conv_transpose3d",
        LayerKind.NORM: "layer_norm group_norm batch_norm instance_norm rms_norm normalize "
        "local_response_norm",
        LayerKind.EMBEDDING: "embedding",
        LayerKind.BAG: "embedding_bag",
        LayerKind.ATTENTION: "scaled_dot_product_attention multi_head_attention_forward",
        LayerKind.POOLING: "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d "
        "adaptive_max_pool1d adaptive_max_pool2d adaptive_avg_pool1d adaptive_avg_pool2d",
        LayerKind.DROPOUT: "dropout dropout1d dropout2d dropout3d alpha_dropout",
        LayerKind.SMOOTH: "tanh sigmoid gelu silu elu selu celu softplus mish softmax log_softmax "
        "logsigmoid exp log pow __pow__ sqrt sin cos erf",
        LayerKind.VIEW: "view reshape flatten unflatten transpose permute squeeze unsqueeze expand "
        "expand_as chunk split unbind movedim __getitem__ narrow select detach t swapaxes view_as "
        "contiguous",
    }.items()
    for name in names.split()
}


def facts_of(module: nn.Module, example: Tensor) -> ModelFacts:
    """Read a module's structure from one sample (1, ...); raises the module's own errors."""
    own = copy.deepcopy(module).cpu().train()
    trained = [p for p in own.parameters() if p.requires_grad]
    widths: tuple[int, ...] = ()
    with suppress(NotStackable):
        chain = chain_of(module, tuple(example.shape[1:]))
        widths = (chain[0].inputs, *(dense.outputs for dense in chain))
    layers = tuple(_layers(own, example.expand(SAMPLES, *example.shape[1:]).clone()))
    return ModelFacts(
        layers=layers,
        trained=sum(p.numel() for p in trained),
        tensors=len(trained),
        inputs=math.prod(example.shape[1:]),
        itemsize=max((p.element_size() for p in trained), default=4),
        widths=widths,
    )


def _layers(module: nn.Module, x: Tensor) -> list[Layer]:
    found: list[Layer] = []
    counting = _Counting(found)
    with ExitStack() as undo, torch.random.fork_rng(devices=[]), torch.no_grad():
        for layer in module.modules():
            if _is_whole(layer):
                undo.enter_context(counting.of(layer))
        undo.enter_context(counting)
        module(x)
    return found


def _is_whole(layer: nn.Module) -> bool:
    ours = type(layer).__module__.startswith("torch.nn")
    leaf = next(layer.children(), None) is None or isinstance(layer, nn.MultiheadAttention)
    return ours and leaf


class _Counting(TorchFunctionMode):
    """Records functions of PyTorch that are called outside its own layers."""

    def __init__(self, found: list[Layer]) -> None:
        super().__init__()
        self._found = found
        self._inside = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if not (name.startswith("__") and name.endswith("__")):
            name = name.rstrip("_")  # in-place variants
        if not self._inside and name != "__get__" and (outputs := _numel(result)):
            kind = _FUNCTIONS.get(name, LayerKind.POINTWISE)
            products = _products_of_call(kind, args, result)
            self._found.append(Layer(kind, outputs, products))
        return result

    @contextmanager
    def of(self, layer: nn.Module) -> Iterator[None]:
        """Count a layer's calls, as one operation each."""

        def enter(_layer: nn.Module, _inputs: Any) -> None:
            self._inside += 1

        def leave(_layer: nn.Module, inputs: Any, output: Any) -> None:
            self._inside -= 1
            if not self._inside:
                self._found.append(_layer_of(layer, inputs, output))

        hooks = [layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _numel(result: Any) -> int:
    """Numbers per sample in a function's result; 0 if that is no tensor."""
    if isinstance(result, Tensor):
        return max(1, result.numel() // SAMPLES)
    if isinstance(result, tuple | list):
        return sum(_numel(each) for each in result)
    return 0


def _layer_of(layer: nn.Module, inputs: Any, output: Any) -> Layer:
    kind = next((k for k, types in _LAYERS if isinstance(layer, types)), LayerKind.POINTWISE)
    outputs = max(1, _numel(output))
    x = next((each for each in inputs if isinstance(each, Tensor)), None)
    weights = sum(p.numel() for p in layer.parameters() if p.ndim > 1)
    match kind:
        case LayerKind.LINEAR:
            last = output.shape[-1] if output.ndim else 1
            return Layer(kind, outputs, weights * max(1, outputs // last))
        case LayerKind.CONVOLUTION:
            return Layer(kind, outputs, weights * math.prod(output.shape[2:]))
        case LayerKind.RECURRENT:
            steps = _time_steps(layer, x)
            depth = getattr(layer, "num_layers", 1) * (1 + getattr(layer, "bidirectional", False))
            return Layer(kind, outputs, weights * steps, steps=steps * depth)
        case LayerKind.ATTENTION:
            length = max(1, outputs // int(output[0].shape[-1]))
            return Layer(kind, outputs, weights * length + 2 * length * outputs)
        case LayerKind.POOLING if x is not None:
            return Layer(kind, max(outputs, x.numel() // SAMPLES))
    return Layer(kind, outputs)


def _time_steps(layer: nn.Module, x: Tensor | None) -> int:
    if x is None or x.ndim < 3 or not isinstance(layer, nn.RNNBase):
        return 1
    return int(x.shape[1] if layer.batch_first else x.shape[0])


def _products_of_call(kind: LayerKind, args: tuple[Any, ...], result: Any) -> int:
    tensors = [each for each in args if isinstance(each, Tensor)]
    if kind not in (LayerKind.LINEAR, LayerKind.CONVOLUTION) or len(tensors) < 2:
        return 0
    outputs = _numel(result)
    if kind is LayerKind.CONVOLUTION:
        return outputs * tensors[1][0].numel()
    return outputs * int(tensors[0].shape[-1]) if tensors[0].ndim else outputs
