"""What PyTorch warns of in vain is silent, and no other thread's warnings are touched for it."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedpilot.federated.engine.stacking import MappedModule


class Meanwhile(nn.Module):
    """A layer that calls something as it works, as another thread may run then."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        self.what()
        return x


def test_a_thread_that_collects_warnings_beside_the_training_leaves_the_filters_as_they_were() -> (
    None
):
    module, seen = MappedModule(nn.Sequential(nn.Linear(2, 2), Meanwhile(lambda: None)), 1), []
    collecting, done = warnings.catch_warnings(), threading.Event()

    def begin() -> None:
        thread = threading.Thread(target=lambda: (collecting.__enter__(), done.set()))
        thread.start()
        assert done.wait(60)
        thread.join()
        seen.append(list(warnings.filters))

    before = list(warnings.filters)
    module._module[1].what = begin  # type: ignore[index, union-attr]
    module.forward(1, torch.zeros(3, 2))
    collecting.__exit__(None, None, None)
    assert seen == [before]
    assert list(warnings.filters) == before


def test_vmaps_remark_on_speed_is_not_printed() -> None:
    def warn() -> None:
        warnings.warn("There is a performance drop because we fall back", stacklevel=1)

    module = MappedModule(nn.Sequential(nn.Linear(2, 2), Meanwhile(warn)), 1)
    assert module.forward(1, torch.zeros(3, 2)).shape == (3, 2)


def test_other_warnings_of_user_code_are_heard() -> None:
    def warn() -> None:
        warnings.warn("my own", stacklevel=1)

    module = MappedModule(nn.Sequential(nn.Linear(2, 2), Meanwhile(warn)), 1)
    with pytest.warns(UserWarning, match="my own"):
        module.forward(1, torch.zeros(3, 2))
