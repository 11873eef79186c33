"""Server optimizers step as their papers have it, and as PyTorch's optimizers do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedpilot.federated.algorithms import algorithm_of, fedadagrad, fedadam, fedavgm, fedyogi
from fedpilot.federated.algorithms.server_step import ServerOptimizer, stepped
from fedpilot.federated.config.schema import FederationConfig
from fedpilot.federated.core.algorithm import Algorithm, Needs
from fedpilot.federated.core.state import Array, TensorRole

ROLES = {
    "w": TensorRole.TRAINED,
    "statistic": TensorRole.STATISTIC,
    "count": TensorRole.COUNTER,
    "frozen": TensorRole.CONSTANT,
}

rates = st.floats(1e-3, 2.0)
betas = st.just(0.0) | st.floats(1e-3, 0.999)  # PyTorch makes the share of a beta by 1 - (1 - beta)
taus = st.floats(1e-6, 1.0)
updates = st.lists(
    st.lists(st.floats(-100, 100), min_size=3, max_size=3), min_size=1, max_size=6
).map(np.array)


def path(algorithm: Algorithm, rounds: Array) -> list[Array]:
    """The trained tensor after each round, from zero."""
    model: dict[str, Array] = {"w": np.zeros(3)}
    memory, seen = algorithm.init(model), []
    for update in rounds:
        model, memory = algorithm.apply(model, ROLES, memory, {"w": update})
        seen.append(model["w"])
    return seen


def assert_close(found: Any, expected: Any) -> None:
    """Within 1e-9 of the longest way from zero: later steps may lead back to it."""
    reach = float(np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * reach + 1e-12)


def by_torch(make: Callable[[list[torch.Tensor]], torch.optim.Optimizer], rounds: Array) -> Any:
    """The same with an optimizer of PyTorch's, whose gradients point the other way."""
    weight = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer, seen = make([weight]), []
    for update in rounds:
        weight.grad = -torch.tensor(update)
        optimizer.step()
        seen.append(weight.detach().clone().numpy())
    return seen


@settings(max_examples=settings().max_examples // 3)
@given(rounds=updates, rate=rates, first=betas, second=betas, tau=taus)
def test_fedadam_with_its_bias_corrected_is_adam(
    rounds: Array, rate: float, first: float, second: float, tau: float
) -> None:
    found = path(fedadam(rate, (first, second), tau, bias_correction=True), rounds)
    adam = by_torch(lambda w: torch.optim.Adam(w, lr=rate, betas=(first, second), eps=tau), rounds)
    assert_close(found, adam)


@given(rounds=updates, rate=rates, momentum=betas)
def test_fedavgm_is_gradient_descent_with_momentum(
    rounds: Array, rate: float, momentum: float
) -> None:
    found = path(fedavgm(rate, momentum), rounds)
    sgd = by_torch(lambda w: torch.optim.SGD(w, lr=rate, momentum=momentum), rounds)
    assert_close(found, sgd)


@given(rounds=updates, rate=rates, tau=taus)
def test_fedadagrad_without_momentum_is_adagrad(rounds: Array, rate: float, tau: float) -> None:
    found = path(fedadagrad(rate, 0.0, tau), rounds)
    adagrad = by_torch(
        lambda w: torch.optim.Adagrad(w, lr=rate, eps=tau, initial_accumulator_value=tau**2),
        rounds,
    )
    assert_close(found, adagrad)


@given(rounds=updates, rate=rates, first=betas, second=betas, tau=taus)
def test_fedyogi_and_fedadam_follow_the_second_algorithm_of_the_paper(
    rounds: Array, rate: float, first: float, second: float, tau: float
) -> None:
    for algorithm, yogi in (
        (fedyogi(rate, (first, second), tau), True),
        (fedadam(rate, (first, second), tau), False),
    ):
        found = path(algorithm, rounds)
        expected = np.zeros(rounds.shape)
        for column in range(3):
            x, m, v = 0.0, 0.0, tau * tau
            for number, delta in enumerate(rounds[:, column].tolist()):
                m = first * m + (1 - first) * delta
                if not yogi:
                    v = second * v + (1 - second) * (delta * delta)
                elif v > delta * delta:
                    v -= (1 - second) * (delta * delta)
                elif v < delta * delta:
                    v += (1 - second) * (delta * delta)
                x += rate * m / (v**0.5 + tau)
                expected[number, column] = x
        assert_close(found, expected)


EACH = pytest.mark.parametrize(
    "algorithm",
    [fedavgm(), fedadagrad(0.1), fedyogi(0.1), fedadam(0.1), fedadam(0.1, bias_correction=True)],
    ids=["fedavgm", "fedadagrad", "fedyogi", "fedadam", "corrected"],
)


@EACH
def test_only_trained_tensors_go_through_the_optimizer(algorithm: Algorithm) -> None:
    old: dict[str, Array] = {
        "w": np.array(1.0, dtype=np.float32),
        "statistic": np.array([1.0], dtype=np.float32),
        "count": np.array(3),
        "frozen": np.array([9.0], dtype=np.float16),
    }
    mean: dict[str, Array] = {"w": np.array(0.5), "statistic": np.array([2.0])}
    new, memory = algorithm.apply(old, ROLES, algorithm.init(old), mean)
    again, memory = algorithm.apply(new, ROLES, memory, mean)
    assert float(again["w"]) != float(new["w"]) != 1.0
    assert again["statistic"].tolist() == [5.0], "its mean, twice"
    assert (again["count"], again["frozen"].tolist()) == (3, [9.0])
    assert {n: (a.dtype, a.shape) for n, a in again.items()} == {
        n: (a.dtype, a.shape) for n, a in old.items()
    }
    assert old["w"] == 1.0, "the model before is not written to"
    assert {name.partition("/")[2] for name in memory} <= {"w", ""}
    assert {(type(array), array.dtype) for array in memory.values()} == {
        (np.ndarray, np.dtype("float64"))
    }


@EACH
def test_the_memory_before_a_round_is_left_as_it_was(algorithm: Algorithm) -> None:
    """A round that is trained again, by `runs verify` or after a crash, begins with it."""
    model: dict[str, Array] = {"w": np.zeros(3)}
    _, memory = algorithm.apply(model, ROLES, {}, {"w": np.ones(3)})
    before = {name: array.copy() for name, array in memory.items()}
    first, _ = algorithm.apply(model, ROLES, memory, {"w": np.ones(3)})
    second, _ = algorithm.apply(model, ROLES, memory, {"w": np.ones(3)})
    assert np.array_equal(first["w"], second["w"])
    assert before.keys() == memory.keys()
    assert all(np.array_equal(before[name], memory[name]) for name in before)


def test_what_is_kept_begins_at_the_value_that_its_optimizer_names() -> None:
    seen: list[Any] = []

    def step(update: Array, kept: Any) -> tuple[Array, Any]:
        seen.append({name: array.tolist() for name, array in kept.items()})
        return update, {"a": kept["a"] + 1, "b": kept["b"]}

    optimizer = ServerOptimizer(step, {"a": 0.0, "b": 4.0})
    model: dict[str, Array] = {"w": np.zeros(2)}
    _, memory = stepped(model, ROLES, {}, {"w": np.ones(2)}, optimizer)
    stepped(model, ROLES, memory, {"w": np.ones(2)}, optimizer)
    assert seen == [{"a": [0, 0], "b": [4, 4]}, {"a": [1, 1], "b": [4, 4]}]
    assert set(memory) == {"a/w", "b/w"}


@pytest.mark.parametrize(
    ("keys", "same"),
    [
        pytest.param({"aggregation_strategy": "fedavgm"}, fedavgm(1.0, 0.9), id="fedavgm"),
        pytest.param(
            {"aggregation_strategy": "fedavgm", "server_momentum": 0.0},
            fedavgm(1.0, 0.0),
            id="no momentum is a momentum",
        ),
        pytest.param(
            {"aggregation_strategy": "fedadam"}, fedadam(0.1, (0.9, 0.99), 1e-3), id="fedadam"
        ),
        pytest.param(
            {"aggregation_strategy": "fedadam", "server_bias_correction": True},
            fedadam(0.1, bias_correction=True),
            id="its bias corrected",
        ),
        pytest.param(
            {"aggregation_strategy": "fedyogi", "server_betas": [0.0, 0.5], "server_tau": 0.1},
            fedyogi(0.1, (0.0, 0.5), 0.1),
            id="fedyogi",
        ),
        pytest.param(
            {
                "aggregation_strategy": "fedadagrad",
                "server_betas": [0.5, 0.1],
                "server_learning_rate": 1.0,
            },
            fedadagrad(1.0, 0.5),
            id="fedadagrad has the first of the betas",
        ),
    ],
)
def test_the_config_chooses(keys: dict[str, Any], same: Algorithm) -> None:
    algorithm = algorithm_of(FederationConfig.model_validate(keys))
    assert (algorithm.name, algorithm.needs) == (keys["aggregation_strategy"], Needs.SUM)
    rounds = np.array([[1.0, -2.0, 1e-4], [0.5, 0.0, 1e-3]])
    assert np.array_equal(path(algorithm, rounds), path(same, rounds))
