"""Runs that scale large updates of clients down to a norm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from federations import Lab, by_groups, on_a_graph, raising, timeless
from fedpilot.federated import ConfigError
from fedpilot.federated.federation.verify import Replay
from pulling import CLIENTS, ROUNDS, goal, present, pulling_code, pulling_keys
from records import Archive

MOST = 0.6
BOUNDED: dict[str, Any] = {"robustness__max_client_norm": MOST}


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pulling_code(tmp_path_factory.mktemp("code")) as name:
        yield name


def test_it_is_the_mean_of_the_updates_that_are_scaled_down(code: str, lab: Lab) -> None:
    """With unequal clients, one of which sends no numbers in the second round."""
    with lab.federation(**pulling_keys(code), **BOUNDED) as federation:
        x = federation.state["weight"].copy()
        samples = [federation.loaded.samples_of(index) or 0 for index in range(CLIENTS)]
        result = federation.run()
        after = federation.state
    assert [row["refused"] for row in result.rows] == [0, 1, 0]
    scaled = []
    for number in range(1, ROUNDS + 1):
        there = present(number)
        whole, moved = sum(samples[i] for i in there), np.zeros_like(x)
        for i in there:
            update = 0.5 * (goal(i, x.shape) - x)
            factor = min(1.0, MOST / float(np.linalg.norm(update)))
            moved += samples[i] / whole * factor * update
            scaled.append(factor < 1.0)
        x = x + moved
    assert any(scaled)
    assert not all(scaled)
    np.testing.assert_allclose(after["weight"], x, rtol=0, atol=1e-9)


@pytest.mark.parametrize("strategy", ["fedavg", "median", "fedadam"])
def test_it_has_the_same_bits_with_any_workers_after_a_crash_and_when_it_is_verified(
    strategy: str, lab: Lab, archive: Archive
) -> None:
    keys = {**BOUNDED, "federation__aggregation_strategy": strategy}
    archive.record("base", **keys)
    other = lab.run(**keys, resources__workers=3)
    assert other.digest != lab.run(**(keys | {"robustness__max_client_norm": None})).digest
    stop = raising(KeyboardInterrupt(), "round_started", 2)
    with pytest.raises(KeyboardInterrupt):
        lab.federation(stop, **keys).run(run_id="r")
    resumed = lab.federation(**keys).resume("r")
    assert (resumed.digest, timeless(resumed.rows)) == (other.digest, timeless(other.rows))
    found = archive.verify("base", how=Replay.ALL)
    assert (found.failure, found.differs) == (None, False)


def test_a_node_that_trains_alone_is_bounded_as_in_a_round(lab: Lab) -> None:
    with lab.federation(robustness__max_client_norm=0.1) as federation:
        before, trained = federation.state, federation["client_1"].train()
    moved = [(trained.state[name] - array).reshape(-1) for name, array in before.items()]
    assert np.linalg.norm(np.concatenate(moved)) == pytest.approx(0.1, rel=1e-5)


def test_groups_that_average_once_are_a_star(lab: Lab) -> None:
    keys = {**BOUNDED, "federation__clients_per_round": None, "federation__rounds": 2}
    grouped = lab.run(**(keys | by_groups(count=3, steps=1)))
    assert grouped.digest == lab.run(**keys).digest


def test_a_graph_has_no_updates_to_scale(lab: Lab) -> None:
    with pytest.raises(ConfigError, match="exchange models, not updates"):
        lab.federation(**on_a_graph(**BOUNDED))
