"""FedAvg moves the model by the mean update, and leaves alone what is not trained."""

from __future__ import annotations

import numpy as np
import pytest

from fedpilot.federated.algorithms import fedavg
from fedpilot.federated.core.state import TensorRole, digest
from fedpilot.federated.core.sums.partial import Partial, Reference, Tally

ROLES = {
    "w": TensorRole.TRAINED,
    "statistic": TensorRole.STATISTIC,
    "count": TensorRole.COUNTER,
    "frozen": TensorRole.CONSTANT,
}


def model() -> dict[str, np.ndarray]:
    return {
        "w": np.array([1.0, 2.0], dtype=np.float32),
        "statistic": np.array([1.0], dtype=np.float32),
        "count": np.array(3),
        "frozen": np.array([9.0], dtype=np.float32),
    }


MEAN = {"w": np.array([0.5, -1.0]), "statistic": np.array([2.0])}


@pytest.mark.parametrize(
    ("rate", "w"),
    [
        pytest.param(1.0, [1.5, 1.0], id="plain"),
        pytest.param(0.5, [1.25, 1.5], id="half a step"),
        pytest.param(2.0, [2.0, 0.0], id="two steps"),
    ],
)
def test_the_server_steps_along_the_mean_of_trained_tensors_only(
    rate: float, w: list[float]
) -> None:
    algorithm = fedavg(rate)
    memory = algorithm.init(model())
    new, memory = algorithm.apply(model(), ROLES, memory, MEAN)
    assert new["w"].tolist() == w
    assert new["statistic"].tolist() == [3.0], "statistics are averaged whatever the rate"
    assert (new["count"], new["frozen"].tolist()) == (3, [9.0])
    assert dict(memory) == {}


def test_types_and_shapes_stay_and_the_old_model_is_not_touched() -> None:
    old = model()
    before = digest(old)
    new, _ = fedavg().apply(old, ROLES, {}, MEAN)
    assert digest(old) == before
    assert {n: (a.dtype, a.shape) for n, a in new.items()} == {
        n: (a.dtype, a.shape) for n, a in old.items()
    }


def test_the_step_is_made_in_float64_and_rounded_once() -> None:
    old = {"w": np.array([1.0], dtype=np.float32)}
    tiny = 2.0**-24  # half of the last bit of 1: rounds to even, unless something came before it
    roles = {"w": TensorRole.TRAINED}
    assert fedavg().apply(old, roles, {}, {"w": np.array([tiny])})[0]["w"] == 1.0
    above = tiny * (1 + 2.0**-20)
    assert fedavg().apply(old, roles, {}, {"w": np.array([above])})[0]["w"] > 1.0


def test_clients_that_all_return_the_same_model_give_that_model() -> None:
    rng = np.random.default_rng(3)
    start = {"w": rng.normal(size=50).astype(np.float32)}
    end = {"w": start["w"] + rng.normal(size=50).astype(np.float32)}
    roles = {"w": TensorRole.TRAINED}
    reference = Reference.of(start, roles)
    partial = Partial(reference.exponents)
    for client in range(7):
        partial.add(str(client), end, 1 + client, Tally(), reference)
    new, _ = fedavg().apply(start, roles, {}, partial.mean())
    np.testing.assert_allclose(new["w"], end["w"], rtol=2**-23, atol=2**-30)


def test_a_model_of_zero_dimensions_keeps_its_shape() -> None:
    old = {"scale": np.array(1.0, dtype=np.float32)}
    new, _ = fedavg().apply(old, {"scale": TensorRole.TRAINED}, {}, {"scale": np.array(0.5)})
    assert isinstance(new["scale"], np.ndarray)
    assert (new["scale"].shape, new["scale"].dtype, float(new["scale"])) == ((), np.float32, 1.5)
