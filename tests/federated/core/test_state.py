"""Every tensor has a role, and a digest says whether two states are the same bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from fedpilot.federated.core.state import TensorRole, averaged, counters, digest, nbytes, role_of
from fedpilot.federated.engine.training.modules import roles_of, state_of, to_tensors
from fedpilot.federated.errors import RunRefused


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 3, bias=False)
        self.decoder = nn.Linear(3, 3, bias=False)
        self.decoder.weight = self.encoder.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(x))


class Odds(nn.Module):
    """One tensor of every kind that people put into modules."""

    def __init__(self) -> None:
        super().__init__()
        self.trained = nn.Parameter(torch.ones(2))
        self.small_floats = nn.Parameter(torch.ones(2, dtype=torch.float16))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.table = nn.Parameter(torch.arange(3), requires_grad=False)
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("small", torch.tensor([1], dtype=torch.uint8))
        self.register_buffer("running", torch.zeros(2))
        self.register_buffer("unsaved", torch.zeros(2), persistent=False)


ODDS = {
    "trained": TensorRole.TRAINED,
    "small_floats": TensorRole.TRAINED,
    "scale": TensorRole.TRAINED,
    "frozen": TensorRole.CONSTANT,
    "table": TensorRole.CONSTANT,
    "mask": TensorRole.CONSTANT,
    "count": TensorRole.COUNTER,
    "small": TensorRole.COUNTER,
    "running": TensorRole.STATISTIC,
}


def test_every_kind_of_tensor_has_its_role() -> None:
    roles = roles_of(Odds(), keep_buffers=False)
    assert roles == ODDS
    assert averaged(roles) == ("running", "scale", "small_floats", "trained")
    assert counters(roles) == ("count", "small")


def test_statistics_that_are_kept_are_constants() -> None:
    assert roles_of(Odds(), keep_buffers=True) == ODDS | {"running": TensorRole.CONSTANT}


def test_batch_norm_has_weights_statistics_and_a_counter() -> None:
    assert roles_of(nn.BatchNorm1d(2), keep_buffers=False) == {
        "weight": TensorRole.TRAINED,
        "bias": TensorRole.TRAINED,
        "running_mean": TensorRole.STATISTIC,
        "running_var": TensorRole.STATISTIC,
        "num_batches_tracked": TensorRole.COUNTER,
    }


def test_tied_weights_are_trained_under_both_names() -> None:
    roles = roles_of(Tied(), keep_buffers=False)
    assert roles == {"encoder.weight": TensorRole.TRAINED, "decoder.weight": TensorRole.TRAINED}
    state = state_of(Tied())
    assert np.array_equal(state["encoder.weight"], state["decoder.weight"])


def test_a_frozen_layer_is_constant() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[0].requires_grad_(False)
    roles = roles_of(module, keep_buffers=False)
    assert {name for name, role in roles.items() if role is TensorRole.TRAINED} == {
        "1.weight",
        "1.bias",
    }


@pytest.mark.parametrize("kind", "fiubc")
@pytest.mark.parametrize("parameter", [True, False])
@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("keep", [True, False])
def test_every_combination_has_a_role(
    kind: str, parameter: bool, requires_grad: bool, keep: bool
) -> None:
    role = role_of(parameter=parameter, requires_grad=requires_grad, kind=kind, keep_buffers=keep)
    if kind != "f":
        assert role is not TensorRole.TRAINED
        assert role is not TensorRole.STATISTIC


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: nn.Linear(2, 2, dtype=torch.bfloat16), id="bfloat16 weights"),
        pytest.param(lambda: nn.Linear(2, 2, dtype=torch.complex64), id="complex weights"),
    ],
)
def test_a_type_that_cannot_be_averaged_exactly_is_refused_by_name(
    make: Callable[[], nn.Module],
) -> None:
    with pytest.raises(RunRefused, match=r"weight.*(bfloat16|complex64)"):
        roles_of(make(), keep_buffers=False)


def test_a_state_is_a_copy() -> None:
    module = nn.Linear(2, 2)
    before = state_of(module)
    first = digest(before)
    with torch.no_grad():
        module.weight.add_(1.0)
    assert digest(before) == first
    before["weight"][...] = 0.0
    assert float(module.weight.detach().abs().sum()) > 0


def test_tensors_of_a_state_share_no_memory_with_it() -> None:
    state = {"w": np.zeros(2), "n": np.array(3)}
    for array in state.values():
        array.setflags(write=False)
    tensors = to_tensors(state, torch.device("cpu"))
    tensors["w"].add_(1.0)
    tensors["n"].add_(1)
    assert state["w"].tolist() == [0.0, 0.0]
    assert tensors["n"].shape == ()


# -- digests ----------------------------------------------------------------------------------

STATE = {"w": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), "n": np.array(7)}


@pytest.mark.parametrize(
    "same",
    [
        pytest.param({"n": STATE["n"], "w": STATE["w"]}, id="in another order of names"),
        pytest.param({**STATE, "w": np.asfortranarray(STATE["w"])}, id="in another memory order"),
        pytest.param({**STATE, "w": STATE["w"].astype(">f8")}, id="big-endian"),
        pytest.param({**STATE, "w": np.repeat(STATE["w"], 2, axis=1)[:, ::2]}, id="as a view"),
        pytest.param({**STATE, "n": np.int64(7)}, id="a scalar in the place of a 0-d array"),
    ],
)
def test_the_digest_is_that_of_the_values(same: dict[str, np.ndarray]) -> None:
    assert digest(same) == digest(STATE)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({**STATE, "w": STATE["w"].astype("f4")}, id="another type"),
        pytest.param({**STATE, "w": STATE["w"].reshape(3, 2)}, id="another shape"),
        pytest.param({**STATE, "n": np.array([7])}, id="one dimension more"),
        pytest.param({"v": STATE["w"], "n": STATE["n"]}, id="another name"),
        pytest.param({"w": STATE["w"]}, id="a tensor less"),
        pytest.param({**STATE, "w": np.nextafter(STATE["w"], 9)}, id="another last bit"),
        pytest.param({**STATE, "w": -STATE["w"]}, id="another sign"),
        pytest.param({}, id="nothing"),
    ],
)
def test_another_state_has_another_digest(other: dict[str, np.ndarray]) -> None:
    assert digest(other) != digest(STATE)


def test_zeros_of_either_sign_are_different_bits() -> None:
    assert digest({"w": np.array([0.0])}) != digest({"w": np.array([-0.0])})


def test_the_digest_of_a_known_state_is_pinned() -> None:
    state = {"a": np.array([1.0, -2.0], dtype=np.float32), "b": np.array(3, dtype=np.int64)}
    assert digest(state) == ("a772c4d15d468b8e6d5ff1a311f915138af1447ab93b81720b58b0b6522ca21b")


def test_bytes_are_those_of_all_arrays() -> None:
    assert nbytes([np.zeros(3, "f4"), np.array(1, "i8")]) == 20
    assert nbytes([]) == 0
