"""Updates are scaled down to a norm client by client, with the same bits beside any others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from fedpilot.federated.core.state import TensorRole
from fedpilot.federated.engine.training.norms import NormBound
from fedpilot.federated.engine.training.training import Trained

ROLES = {
    "weight": TensorRole.TRAINED,
    "bias": TensorRole.TRAINED,
    "scale": TensorRole.TRAINED,
    "mean": TensorRole.STATISTIC,
}
SHAPES: dict[str, tuple[int, ...]] = {"weight": (7, 33), "bias": (7,), "scale": (), "mean": (7,)}

ONE = np.zeros(1)


def made(clients: int, seed: int, size: float = 1.0) -> tuple[Trained, dict[str, Tensor]]:
    dice = torch.Generator().manual_seed(seed)
    start = {name: torch.randn(shape, generator=dice) for name, shape in SHAPES.items()}
    sizes = size * torch.logspace(-2, 1, clients)
    tensors = {
        name: start[name]
        + sizes.reshape(-1, *[1] * len(shape)) * torch.randn((clients, *shape), generator=dice)
        for name, shape in SHAPES.items()
    }
    return Trained(slice(0, clients), tensors, np.zeros(clients), 0.0), start


def bounded(trained: Trained, start: dict[str, Tensor], most: float) -> Trained:
    found = replace(trained, tensors={n: rows.clone() for n, rows in trained.tensors.items()})
    NormBound(most, ROLES).apply(found, start)
    return found


def norm_of(trained: Trained, start: dict[str, Tensor], client: int) -> float:
    moved = [
        (trained.tensors[name][client] - start[name]).double().reshape(-1)
        for name, role in ROLES.items()
        if role is TensorRole.TRAINED
    ]
    return float(torch.cat(moved).norm())


@given(st.integers(1, 40), st.integers(0, 100), st.floats(1e-3, 1e3))
def test_each_update_has_at_most_that_norm_and_its_direction(
    clients: int, seed: int, most: float
) -> None:
    trained, start = made(clients, seed)
    found = bounded(trained, start, most)
    for client in range(clients):
        before, after = norm_of(trained, start, client), norm_of(found, start, client)
        assert after == pytest.approx(min(before, most), rel=1e-2, abs=1e-5)
        if before < (1 - 1e-6) * most:
            for name, rows in found.tensors.items():
                assert torch.equal(rows[client], trained.tensors[name][client])
    assert torch.equal(found.tensors["mean"], trained.tensors["mean"]), "statistics are no update"


@given(st.integers(2, 40), st.integers(0, 100))
def test_its_bits_do_not_depend_on_who_stands_beside_it(clients: int, seed: int) -> None:
    trained, start = made(clients, seed)
    whole = bounded(trained, start, 1.0).tensors
    for client in (0, clients // 2, clients - 1):
        rows = {name: each[client : client + 1] for name, each in trained.tensors.items()}
        alone = bounded(Trained(slice(0, 1), rows, np.zeros(1), 0.0), start, 1.0).tensors
        for name, each in alone.items():
            assert torch.equal(each[0], whole[name][client])


def test_an_update_that_is_no_number_stays_none() -> None:
    """The sum refuses it by name."""
    trained, start = made(3, 0)
    trained.tensors["weight"][1, 0, 0] = float("nan")
    trained.tensors["bias"][2, 0] = float("inf")
    found = bounded(trained, start, 1.0)
    kept = {name: rows.isfinite().reshape(3, -1).all(1) for name, rows in found.tensors.items()}
    assert kept["weight"].tolist() == [True, False, True]
    assert kept["bias"].tolist() == [True, True, False]


@pytest.mark.parametrize("kind", [torch.float16, torch.float32])
def test_a_square_that_leaves_the_type_is_scaled_down_like_any_other(kind: torch.dtype) -> None:
    large = 1e4 if kind is torch.float16 else 1e30
    start = {"weight": torch.zeros(5, dtype=kind)}
    trained = Trained(slice(0, 1), {"weight": torch.full((1, 5), large, dtype=kind)}, ONE, 0.0)
    NormBound(1.0, {"weight": TensorRole.TRAINED}).apply(trained, start)
    assert trained.tensors["weight"][0].tolist() == pytest.approx([5**-0.5] * 5, rel=1e-3)


def test_tied_weights_count_once() -> None:
    start = {name: torch.zeros(4) for name in ("a", "b")}
    tied = torch.ones(1, 4)
    trained = Trained(slice(0, 1), {"a": tied, "b": tied}, ONE, 0.0)
    roles = dict.fromkeys(start, TensorRole.TRAINED)
    NormBound(2.0, roles).apply(trained, start)
    assert torch.equal(tied, torch.ones(1, 4)), "its norm is 2"
    NormBound(1.0, roles).apply(trained, start)
    assert torch.equal(tied, torch.full((1, 4), 0.5))
