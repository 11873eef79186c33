"""Steps that compute all rows of a chunk, as a GPU needs, and those bits on a GPU that is there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from clients import FEATURES
from fedpilot.federated.core.execution.facts import Execution, ExecutionKind
from fedpilot.federated.errors import ExecutionRefused
from module_builders import OPTIMIZERS, layers, linear
from pairings import paired
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


@pytest.mark.parametrize(("case", "optimizer"), paired(FOLDED, list(OPTIMIZERS)))
def test_rows_without_a_client_change_no_bit(case: Case, optimizer: str) -> None:
    """On a CPU, whose bits do not depend on the number of rows."""
    how = {"double": False, "number_of_epochs": 2, **OPTIMIZERS[optimizer]}
    some = case.clients(**how).train(kind="folded", chunk_size=CHUNK)
    all_rows = case.clients(all_rows=True, **how).train(kind="folded", chunk_size=CHUNK)
    assert {c: after.bits for c, after in all_rows.items()} == {
        c: after.bits for c, after in some.items()
    }


BY_ROW = ("transformer on tokens", "transformer on numbers")
"""Cases whose bits depend on the row of a client on an H100."""
SAME_IN_ALL_ROWS = [each for each in STACKED if not str(each.id).startswith(BY_ROW)]


@on_a_gpu
@pytest.mark.parametrize("name", BY_ROW)
@pytest.mark.parametrize("kind", ["folded", "mapped"])
def test_on_a_gpu_a_model_whose_bits_depend_on_the_row_trains_one_by_one(
    name: str, kind: str
) -> None:
    clients = CASES[name].clients(device="cuda", double=False)
    with pytest.raises(ExecutionRefused, match="a client's bits depend on its mates"):
        clients.trainers.checked(Execution(ExecutionKind(kind), CHUNK))


@on_a_gpu
@pytest.mark.parametrize(("case", "kind"), SAME_IN_ALL_ROWS if GPU else SAME_IN_ALL_ROWS[:1])
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


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_a_gpu)])
@pytest.mark.parametrize(
    "name", ["mlp", "cnn", pytest.param("resnet", marks=pytest.mark.soak), "depthwise conv"]
)
def test_a_client_that_diverges_changes_no_mate(name: str, device: str) -> None:
    how = {"device": device, "double": False, "number_of_epochs": 2, "all_rows": True}
    clients = CASES[name].clients(**how)
    diverges = int(np.argmax(clients.sizes))
    rows = torch.from_numpy(clients.partition.indices(diverges))
    clients.samples.x[rows.to(clients.samples.x.device)] = float("nan")
    found = clients.train(kind="folded", chunk_size=CHUNK)
    assert not np.isfinite(found[diverges].loss)
    for other in {*clients.everybody} - {diverges}:
        alone = clients.train([other], kind="folded", chunk_size=CHUNK)[other]
        assert np.isfinite(alone.loss)
        assert found[other].bits == alone.bits
