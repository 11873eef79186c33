"""The built-in transformer: a classifier of sequences, made of layers that clients can stack.

Its rules, so that many clients can train as one computation, each with its own weights:

* only PyTorch's own layers use weights, each called on all samples of the batch (hence positions
  are an embedding that is looked up for every sample);
* samples are independent of each other, and the batch has any size;
* no branch depends on values or on the size of the batch (`torch.fx` can trace it).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .builtin import Shape, dropout_layers
from .errors import ModelError

_SMALL = 0.02
"""Standard deviation of the initial position weights, small so that tokens dominate."""


def transformer(
    input_shape: Shape,
    num_classes: int,
    *,
    layers: int = 4,
    width: int = 192,
    heads: int = 6,
    feed_forward: int = 4,
    vocabulary: int | None = None,
    dropout: float = 0.0,
) -> nn.Module:
    """Classify sequences by a pre-norm encoder and the mean of its outputs.

    Vaswani et al. 2017, "Attention is all you need"; Xiong et al. 2020, "On layer normalization in
    the transformer architecture". With `vocabulary` samples are tokens in [0, vocabulary), of shape
    (length,); without it they are numbers of shape (length, features). Every layer has `heads`
    heads that share `width`, and `feed_forward` times `width` hidden units. Positions are learned;
    attention includes all of them, also padding. `dropout` in [0, 1) follows the embedding and
    every sublayer.
    """
    if min(layers, width, heads, feed_forward) < 1:
        raise ModelError(
            "transformer",
            "layers, width, heads and feed_forward are 1 at least, found "
            f"{layers}, {width}, {heads} and {feed_forward}",
        )
    if width % heads:
        raise ModelError("transformer", f"width is a multiple of heads, found {width} and {heads}")
    if not 0 <= dropout < 1:
        raise ModelError("transformer", f"dropout is in [0, 1), found {dropout}")
    body = [_Layer(width, heads, feed_forward * width, dropout) for _ in range(layers)]
    return nn.Sequential(
        _Embedded(_content(input_shape, vocabulary, width), input_shape[0], width),
        *dropout_layers(dropout),
        *body,
        nn.LayerNorm(width),
        _Mean(),
        nn.Linear(width, num_classes),
    )


def _content(input_shape: Shape, vocabulary: int | None, width: int) -> nn.Module:
    """A layer from (batch, *input_shape) to (batch, length, width)."""
    found = f"the data have the shape {tuple(input_shape)}"
    if min(input_shape, default=0) < 1:
        raise ModelError("transformer", f"it needs sequences, {found}")
    if vocabulary is None:
        if len(input_shape) == 2:
            return nn.Linear(input_shape[1], width)
        raise ModelError(
            "transformer",
            "it needs numbers of shape (length, features), or tokens of shape (length,) and the "
            f"option `vocabulary`, the number of different tokens; {found}",
        )
    if vocabulary < 1:
        raise ModelError("transformer", f"vocabulary is 1 at least, found {vocabulary}")
    if len(input_shape) != 1:
        raise ModelError(
            "transformer",
            f"with `vocabulary` it needs tokens of shape (length,), {found}; leave `vocabulary` "
            "out for numbers of shape (length, features)",
        )
    return nn.Embedding(vocabulary, width)


class _Embedded(nn.Module):
    """Content plus position, as one vector for every place of a sequence."""

    def __init__(self, content: nn.Module, length: int, width: int) -> None:
        super().__init__()
        self.content = content
        self.position = nn.Embedding(length, width)
        nn.init.normal_(self.position.weight, std=_SMALL)

    def forward(self, x: Tensor) -> Tensor:
        content: Tensor = self.content(x)
        # 0, 1, 2, ... for every sample; torch.arange needs the size of the batch.
        places = torch.ones_like(content[..., 0], dtype=torch.int64).cumsum(1) - 1
        position: Tensor = self.position(places)
        return content + position


class _Attention(nn.Module):
    """Multi-head self-attention over all places of a sequence."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        mixed = functional.scaled_dot_product_attention(
            self._per_head(self.query(x)),
            self._per_head(self.key(x)),
            self._per_head(self.value(x)),
        )
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def _per_head(self, x: Tensor) -> Tensor:
        """(batch, length, width) -> (batch, heads, length, width / heads)."""
        return torch.unflatten(x, -1, (self.heads, -1)).transpose(1, 2)


class _Layer(nn.Module):
    """Attention, then two dense layers, each with a skip connection."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.Sequential(
            nn.LayerNorm(width), _Attention(width, heads), *dropout_layers(dropout)
        )
        self.dense = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, hidden),
            nn.GELU(),
            nn.Linear(hidden, width),
            *dropout_layers(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        out: Tensor = x + self.dense(x)
        return out


class _Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)
