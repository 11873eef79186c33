"""Layers with one set of weights per client, on inputs whose batch is (clients * samples).

A folded module keeps its own code, and these replace its layers with weights. All other operations
treat samples one by one. Where a client's bits could depend on others in the batch (one matmul for
several clients), the probe compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(slots=True)
class Axis:
    """The clients of the current pass, shared by the layers of one module."""

    clients: int = 0
    rate: float = 0.0
    """The learning rate of backward passes that are themselves a step of SGD."""
    now: dict[str, Tensor] = field(default_factory=dict)
    """Weights of the current pass, (clients, *shape), by their names in the whole module."""
    generators: Sequence[torch.Generator] = ()
    spark: Tensor = field(default_factory=lambda: torch.zeros((), requires_grad=True))
    """Makes autograd visit layers whose input and weights need no gradient."""

    def unfold(self, x: Tensor) -> Tensor:
        """(clients * batch, ...) -> (clients, batch, ...)."""
        return x.reshape(self.clients, -1, *x.shape[1:])


class StackedLayer(nn.Module):
    """A layer that looks up its current weights by name; TypeError for odd options."""

    fusable = False
    """Whether its backward pass can be the step of SGD."""

    def __init__(self, layer: Any, axis: Axis, names: dict[str, str], *, fused: bool) -> None:
        super().__init__()
        self._axis = axis
        self._names = names
        self._fused = fused
        self._configure(layer)

    def _configure(self, layer: Any) -> None:
        """Copy the options of the replaced layer."""

    def _weight(self, local: str) -> Tensor | None:
        name = self._names.get(local)
        return None if name is None else self._axis.now[name]

    def _scaled(
        self, normal: Tensor, before: tuple[int, ...], after: tuple[int, ...] = ()
    ) -> Tensor:
        """weight * normal + bias, each client's own, broadcast over dimensions before and after."""
        out = self._axis.unfold(normal)
        weight, bias = self._weight("weight"), self._weight("bias")
        if weight is not None:
            out = out * weight.reshape(len(weight), *before, *weight.shape[1:], *after)
        if bias is not None:
            out = out + bias.reshape(len(bias), *before, *bias.shape[1:], *after)
        return out.flatten(0, 1)


class _Matmul(torch.autograd.Function):
    """x @ weight^T + bias for each client; with a rate, its backward pass is the step of SGD."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, spark: Tensor, rate: float | None
    ) -> Tensor:
        ctx.save_for_backward(x, None if rate is not None else weight)
        ctx.fused, ctx.rate = (weight, bias), rate
        if bias is None:
            return torch.bmm(x, weight.mT)
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (moved,) = gradients
        x, weight = ctx.saved_tensors
        if ctx.rate is None:
            needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
            return (
                torch.bmm(moved, weight) if needs_x else None,
                torch.bmm(moved.mT, x) if needs_weight else None,
                moved.sum(1) if needs_bias else None,
                None,
                None,
            )
        weight, bias = ctx.fused
        back = torch.bmm(moved, weight) if ctx.needs_input_grad[0] else None
        weight.baddbmm_(moved.mT, x, alpha=-ctx.rate)
        if bias is not None:
            bias.sub_(moved.sum(1), alpha=ctx.rate)
        return back, None, None, None, None


class StackedLinear(StackedLayer):
    """nn.Linear as one batched matmul."""

    fusable = True

    def _configure(self, layer: nn.Linear) -> None:
        self.in_features, self.out_features = layer.in_features, layer.out_features

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, axis = self._weight("weight"), self._weight("bias"), self._axis
        flat = x.reshape(axis.clients, -1, self.in_features)
        rate = axis.rate if self._fused else None
        out: Tensor = _Matmul.apply(flat, weight, bias, axis.spark, rate)  # type: ignore[no-untyped-call]
        return out.reshape(*x.shape[:-1], self.out_features)


class StackedConv(StackedLayer):
    """nn.Conv1d, 2d and 3d: one grouped convolution on a GPU, one call per client on a CPU.

    oneDNN is slower at grouped convolutions than at as many single ones.
    """

    def _configure(self, layer: Any) -> None:
        if layer.padding_mode != "zeros":
            raise TypeError(f"padding_mode {layer.padding_mode!r}")
        self._convolve: Callable[..., Tensor] = _CONVOLUTIONS[type(layer)]
        self._options = {
            "stride": layer.stride,
            "padding": layer.padding,
            "dilation": layer.dilation,
        }
        self._groups = layer.groups

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self._weight("weight"), self._weight("bias")
        assert weight is not None
        if x.is_cuda:
            return self._grouped(x, weight, bias)
        biases = [None] * len(weight) if bias is None else bias.unbind(0)
        parts = zip(self._axis.unfold(x).unbind(0), weight.unbind(0), biases, strict=True)
        return torch.cat(
            [self._convolve(x, w, b, groups=self._groups, **self._options) for x, w, b in parts]
        )

    def _grouped(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        clients = self._axis.clients
        side_by_side = self._axis.unfold(x).transpose(0, 1).flatten(1, 2)
        out = self._convolve(
            side_by_side,
            weight.flatten(0, 1),
            None if bias is None else bias.flatten(),
            groups=self._groups * clients,
            **self._options,
        )
        return out.reshape(len(out), clients, -1, *out.shape[2:]).transpose(0, 1).flatten(0, 1)


_CONVOLUTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: functional.conv1d,
    nn.Conv2d: functional.conv2d,
    nn.Conv3d: functional.conv3d,
}


class StackedLayerNorm(StackedLayer):
    """nn.LayerNorm: normalized for all clients together, scaled client by client."""

    def _configure(self, layer: nn.LayerNorm) -> None:
        self._shape, self._eps = layer.normalized_shape, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        normal = functional.layer_norm(x, self._shape, eps=self._eps)
        return self._scaled(normal, (1,) * (x.ndim - len(self._shape)))


class StackedGroupNorm(StackedLayer):
    """nn.GroupNorm likewise, with weights per channel."""

    def _configure(self, layer: nn.GroupNorm) -> None:
        self._groups, self._eps = layer.num_groups, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        normal = functional.group_norm(x, self._groups, eps=self._eps)
        return self._scaled(normal, (1,), after=(1,) * (x.ndim - 2))


class StackedEmbedding(StackedLayer):
    """nn.Embedding: one table of all clients' tables, one after another."""

    def _configure(self, layer: nn.Embedding) -> None:
        if layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse:
            raise TypeError("max_norm, scale_grad_by_freq or sparse")
        self._words, self._nothing = layer.num_embeddings, layer.padding_idx

    def forward(self, x: Tensor) -> Tensor:
        weight = self._weight("weight")
        assert weight is not None
        if self._nothing is not None:  # its row is never trained
            keep = torch.ones(self._words, 1, dtype=weight.dtype, device=weight.device)
            keep[self._nothing] = 0
            weight = weight * keep + (weight * (1 - keep)).detach()
        firsts = torch.arange(len(weight), device=x.device) * self._words
        own = self._axis.unfold(x)
        places = own + firsts.reshape(-1, *(1,) * (own.ndim - 1))
        return functional.embedding(places.flatten(0, 1), weight.flatten(0, 1))


class StackedDropout(StackedLayer):
    """nn.Dropout whose masks come from each client's own generator."""

    def _configure(self, layer: nn.Dropout) -> None:
        self._p = layer.p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self._p == 0:
            return x
        kept = torch.empty_like(x)
        for mine, generator in zip(
            self._axis.unfold(kept), self._axis.generators[: self._axis.clients], strict=True
        ):
            mine.bernoulli_(1 - self._p, generator=generator)
        return x * kept.div_(1 - self._p) if self._p < 1 else x * kept


LAYERS: dict[type[nn.Module], Any] = {
    nn.Linear: StackedLinear,
    nn.Conv1d: StackedConv,
    nn.Conv2d: StackedConv,
    nn.Conv3d: StackedConv,
    nn.LayerNorm: StackedLayerNorm,
    nn.GroupNorm: StackedGroupNorm,
    nn.Embedding: StackedEmbedding,
    nn.Dropout: StackedDropout,
}
"""Layers with a stacked form; exact types, since subclasses may compute otherwise."""
