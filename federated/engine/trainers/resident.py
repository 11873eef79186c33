"""ResidentModule: a worker's one module, which loads one model after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...core.sums.partial import Tally
from ..training.modules import Loss

_POOLING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d)


class ResidentModule:
    """A module on a device, and the places of its tensors."""

    def __init__(
        self, module: nn.Module, loss: Loss, device: torch.device, *, example: Tensor | None = None
    ) -> None:
        """Take over a module; `example`, two samples, shows which memory format it accepts."""
        self.module = module.to(device)
        self._channels_last = example is not None and _takes_channels_last(module, example)
        pooling = [layer for layer in module.modules() if isinstance(layer, _POOLING)]
        self._pooling = pooling if self._channels_last else []
        self.loss = loss
        self.trained: dict[str, Tensor] = {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        """The parameters that a step moves; tied ones once."""
        self._device = device
        self._parameters = {
            name: parameter.detach()
            for name, parameter in module.named_parameters(remove_duplicate=False)
        }
        self._buffers = _buffers_of(module)

    def arranged(self, x: Tensor) -> Tensor:
        """Samples (n, ...) in the memory format of the module."""
        return x.contiguous(memory_format=torch.channels_last) if self._channels_last else x

    @contextmanager
    def gradients_arranged(self) -> Iterator[None]:
        """Let gradients reach pooling layers in the memory format of the module.

        Flattened activations lose it, and then a pooling layer's backward pass takes several times
        longer.
        """
        hooks = [layer.register_forward_hook(_arrange_gradient) for layer in self._pooling]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def laid_out(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A state with the module's memory layout, so that loading it is a copy."""
        return {
            name: tensor
            if name not in self._parameters or tensor.stride() == self._parameters[name].stride()
            else torch.empty_like(self._parameters[name]).copy_(tensor)
            for name, tensor in state.items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load a model into the module, bit for bit."""
        for name, tensor in self._parameters.items():
            tensor.copy_(state[name])
        for buffer in self._buffers:  # a model may have replaced its buffers
            value = state[buffer.name] if buffer.kept else buffer.first
            setattr(buffer.owner, buffer.attribute, value.clone())

    def tensors(self) -> dict[str, Tensor]:
        """The module's present state; the next load changes it."""
        return self._parameters | {
            buffer.name: getattr(buffer.owner, buffer.attribute).detach()
            for buffer in self._buffers
            if buffer.kept
        }

    def evaluate(self, x: npt.NDArray[np.generic], y: npt.NDArray[np.int64], batch: int) -> Tally:
        """Evaluate the loaded model on samples x (n, ...), in consecutive batches."""
        self.module.eval()
        tally = Tally()
        with torch.inference_mode():
            for start in range(0, len(y), batch):
                labels = torch.from_numpy(np.array(y[start : start + batch])).to(self._device)
                inputs = torch.from_numpy(np.array(x[start : start + batch])).to(self._device)
                outputs = self.module(self.arranged(inputs))
                loss = float(self.loss(outputs, labels).detach()) * len(labels)
                correct = int((outputs.argmax(1) == labels).sum()) if outputs.ndim == 2 else 0
                tally.add(len(labels), correct, loss)
        return tally


@dataclass(frozen=True, slots=True)
class _Buffer:
    """A buffer's place in the module, where a model may put another tensor at any time."""

    name: str
    owner: nn.Module
    attribute: str
    first: Tensor
    kept: bool
    """Whether it is part of the state; otherwise it is reset for every client."""


def _takes_channels_last(module: nn.Module, example: Tensor) -> bool:
    """Put a module of images into channels-last order, where its code allows that.

    oneDNN and cuDNN are up to a fifth faster at it. Code that takes views of activations
    (`x.view(len(x), -1)`) may not allow it.
    """
    if example.ndim != 4 or not any(isinstance(layer, nn.Conv2d) for layer in module.modules()):
        return False
    was_training = module.training
    module.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        with torch.no_grad():
            module(example.contiguous(memory_format=torch.channels_last))
    except RuntimeError:
        module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return False
    finally:
        module.train(was_training)
    return True


def _arrange_gradient(_layer: nn.Module, _inputs: Any, output: Any) -> None:
    if isinstance(output, Tensor) and output.ndim == 4 and output.requires_grad:
        output.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient: gradient.contiguous(memory_format=torch.channels_last)
        )


def _buffers_of(module: nn.Module) -> tuple[_Buffer, ...]:
    saved = module.state_dict().keys()
    return tuple(
        _Buffer(name, owner, attribute, tensor.clone(), name in saved)
        for path, owner in module.named_modules(remove_duplicate=False)
        for attribute, tensor in owner.named_buffers(recurse=False)
        for name in [f"{path}.{attribute}" if path else attribute]
    )
