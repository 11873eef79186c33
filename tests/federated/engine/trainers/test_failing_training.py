"""What training does with losses that explode, with errors, and in evaluation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clients import CLASSES, FEATURES, Clients, dense
from fedpilot.federated.core.state import digest
from fedpilot.federated.core.sums.partial import Tally
from fedpilot.federated.engine.trainers.resident import ResidentModule
from fedpilot.federated.errors import ClientFailed
from trained_models import (
    KINDS,
    LARGE,
    OTHER,
    SMALL,
    InPlace,
    clients,
    with_dropout,
)

# -- what goes wrong --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_that_explodes_is_not_finite_and_leaves_no_trace(kind: str) -> None:
    mine = clients(learning_rate=1e30, number_of_epochs=4)
    assert not math.isfinite(mine.one(kind=kind).loss)
    mine.train(kind=kind)
    mine.resident.load(mine.tensors())
    found = {name: tensor.numpy() for name, tensor in mine.resident.tensors().items()}
    assert digest(found) == digest(mine.initial)


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_explodes_does_not_touch_its_mates(kind: str) -> None:
    calm = clients()
    expected = calm.train([OTHER, SMALL], kind=kind)
    wild = clients()
    wild.all_x[wild.partition.indices(LARGE)] = 1e38
    found = wild.train(kind=kind)
    assert not math.isfinite(found[LARGE].loss)
    assert found[OTHER].bits == expected[OTHER].bits
    assert found[SMALL].bits == expected[SMALL].bits


class Raising(nn.Module):
    """Raises when it trains a sample above a limit."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.detach().max()) > 50:
            raise ValueError("this sample is too much for me")
        return self.linear(x)


def test_a_client_whose_training_raises_is_named() -> None:
    mine = clients(Raising)
    mine.all_x[mine.partition.indices(OTHER)[3]] = 99.0
    with pytest.raises(ClientFailed, match="ValueError: this sample is too much") as caught:
        mine.train()
    assert caught.value.client_id == "client_1"
    assert "round 1" in str(caught.value)
    fresh = clients(Raising)
    assert mine.one(SMALL).bits == fresh.one(SMALL).bits, "the others are none the worse for it"


@pytest.mark.parametrize("kind", ["folded", "mapped"])
def test_clients_that_fail_together_are_named_together(kind: str) -> None:
    mine = Clients(sizes=(4,) * 5)
    mine.all_y[mine.partition.indices(2)] = CLASSES + 1  # a label that there is no output for
    with pytest.raises(ClientFailed, match="and 2 more failed while training together in round 3"):
        mine.train(kind=kind, number=3)
    assert mine.one(0, kind=kind).bits == Clients(sizes=(4,) * 5).one(0, kind=kind).bits


# -- evaluation -------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_evaluation_counts_samples_right_answers_and_losses(batch: int) -> None:
    mine = clients()
    mine.resident.load(mine.tensors())
    x, y = mine.data_of(OTHER)
    tally = mine.resident.evaluate(x.numpy(), y.numpy(), batch)
    torch.manual_seed(1)
    with torch.no_grad():
        outputs = dense()(x)
    assert tally.samples == len(y)
    assert tally.correct == int((outputs.argmax(1) == y).sum())
    assert tally.mean_loss == pytest.approx(
        float(nn.functional.cross_entropy(outputs, y)), rel=1e-5
    )


def test_evaluation_in_parts_that_end_with_a_batch_gives_the_same_sums() -> None:
    mine = clients(with_dropout, (40,))
    mine.resident.load(mine.tensors())
    x, y = (t.numpy() for t in mine.data_of(0))
    whole = mine.resident.evaluate(x, y, 8).to_json()
    parts = Tally()
    for start, stop in ((16, 40), (0, 8), (8, 16)):
        parts.merge(mine.resident.evaluate(x[start:stop], y[start:stop], 8))
    assert parts.to_json() == whole


def test_evaluation_leaves_read_only_samples_as_they_are() -> None:
    mine = clients(InPlace)
    mine.resident.load(mine.tensors())
    x, y = (t.numpy() for t in mine.data_of(LARGE))
    x.setflags(write=False)
    before = x.copy()
    mine.resident.evaluate(x, y, 4)
    assert np.array_equal(x, before)


def test_gradients_reach_pooling_layers_as_the_module_lies_in_memory() -> None:
    """A gradient comes back from flattening in another order, which pooling is slow with."""
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2))
    x = torch.randn(5, 1, 8, 8)
    resident = ResidentModule(module, nn.functional.cross_entropy, torch.device("cpu"), example=x)

    def ordered() -> bool:
        seen: list[bool] = []
        pooled = module[1](module[0](resident.arranged(x)))
        pooled.register_hook(
            lambda gradient: seen.append(gradient.is_contiguous(memory_format=torch.channels_last))
        )
        module[3](module[2](pooled)).sum().backward()
        return seen == [True]

    with resident.gradients_arranged():
        assert ordered()
    assert not ordered()
