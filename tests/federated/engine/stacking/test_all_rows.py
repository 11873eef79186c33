"""Steps that compute all rows of a chunk, as a GPU needs, and those bits on a GPU that is there."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from clients import FEATURES
from fedpilot.federated.core.execution.facts import Execution, ExecutionKind
from module_builders import OPTIMIZERS, layers, linear
from stackable_modules import CASES, STACKED, Case

CHUNK = 8
"""Rows; more than there are clients."""

DROPPING = Case(layers(linear(FEATURES, 16), nn.ReLU, lambda: nn.Dropout(0.5), linear(16)))
FOLDED = [
    *(
        pytest.param(CASES[n], id=n)
        for n in ("mlp", "cnn", "transformer on tokens", "tied weights")
    ),
    pytest.param(DROPPING, id="dropout"),
]

GPU = torch.cuda.is_available()
on_a_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU of NVIDIA")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("case", FOLDED)
def test_rows_without_a_client_change_no_bit(case: Case, optimizer: str) -> None:
    """On a CPU, whose bits do not depend on the number of rows."""
    how = {"double": False, "number_of_epochs": 2, **OPTIMIZERS[optimizer]}
    some = case.clients(**how).train(kind="folded", chunk_size=CHUNK)
    all_rows = case.clients(all_rows=True, **how).train(kind="folded", chunk_size=CHUNK)
    assert {c: after.bits for c, after in all_rows.items()} == {
        c: after.bits for c, after in some.items()
    }


@on_a_gpu
@pytest.mark.parametrize(("case", "kind"), STACKED if GPU else STACKED[:1])
def test_on_a_gpu_a_clients_bits_do_not_depend_on_its_mates(case: Case, kind: str) -> None:
    clients = case.clients(device="cuda", double=False, number_of_epochs=2)
    clients.trainers.checked(Execution(ExecutionKind(kind), CHUNK))
    alone = {
        client: clients.train([client], kind=kind, chunk_size=CHUNK)[client].bits
        for client in clients.everybody
    }

    @settings(max_examples=12, deadline=None)
    @given(st.permutations(clients.everybody), st.integers(1, len(clients.everybody)))
    def whoever_they_are(order: list[int], some: int) -> None:
        found = clients.train(order[:some], kind=kind, chunk_size=CHUNK)
        assert {c: after.bits for c, after in found.items()} == {c: alone[c] for c in order[:some]}

    whoever_they_are()


@on_a_gpu
@pytest.mark.parametrize(("case", "kind"), STACKED if GPU else STACKED[:1])
def test_on_a_gpu_training_together_is_training_one_by_one(case: Case, kind: str) -> None:
    clients = case.clients(device="cuda", number_of_epochs=2)
    alone, together = clients.train(), clients.train(kind=kind, chunk_size=CHUNK)
    assert (
        max(
            abs(alone[c].state[name] - together[c].state[name]).max(initial=0.0)
            for c in alone
            for name in alone[c].state
        )
        < 1e-9
    )
