"""A site knows before a run begins whether one of its clients will be alone in a round."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import site_data
from fedpilot.federated.config import parse_config
from fedpilot.federated.core.population.groups import grouped
from fedpilot.federated.core.population.partitions.disjoint import natural
from fedpilot.federated.core.population.sampling import cohort
from fedpilot.federated.prepare.inputs.run_inputs import RunInputs
from fedpilot.federated.site.cohorts import Cohorts

POPULATION = 40
GROUPS = {
    "federation__topology": "hierarchical",
    "federation__clients_per_round": None,
    "hierarchy__groups": {"by": "label"},
}


def first_alone(here: range, size: int, kinds: list[int] | None = None, **keys: Any) -> int | None:
    """What a site that holds those of 40 clients finds; `kinds` are the groups of its own."""
    config = parse_config(site_data.config(["x.yaml"], Path("runs"), **keys))
    groups = None
    if kinds is not None:
        owners = natural(np.array([f"c{i:02}" for i in range(len(kinds))]))
        groups = grouped(np.array(kinds), [f"kind {kind}" for kind in range(5)], owners)
    data = SimpleNamespace(groups=groups)
    facts = {"here": here, "population": POPULATION, "cohort_size": size, "data": data}
    return Cohorts(config, cast("RunInputs", SimpleNamespace(**facts))).first_alone()


def test_it_is_the_first_round_that_draws_one_of_its_clients() -> None:
    here, rounds = range(10, 14), 12
    drawn = [np.isin(cohort(POPULATION, 10, 3, n), here).sum() for n in range(1, rounds + 1)]
    assert drawn.count(1)
    wanted = drawn.index(1) + 1
    assert first_alone(here, 10, federation__rounds=rounds) == wanted
    assert first_alone(here, 10, federation__rounds=wanted) == wanted
    if wanted > 1:
        assert first_alone(here, 10, federation__rounds=wanted - 1) is None


@pytest.mark.parametrize(
    ("here", "size", "kinds", "keys", "found"),
    [
        pytest.param(range(5, 6), 40, None, {}, 1, id="a site of one client"),
        pytest.param(range(5, 7), 40, None, {}, None, id="everybody takes part"),
        pytest.param(range(5, 7), 39, None, {"federation__rounds": 500}, True, id="one may lack"),
        pytest.param(range(4), 40, [0] * 4, {**GROUPS, "hierarchy__clients_per_round": 1}, 1,
                     id="one group, with steps of one client"),
        pytest.param(range(4), 40, [0, 0, 1, 1], {**GROUPS, "hierarchy__clients_per_round": 1},
                     None, id="two groups, each with steps of one"),
        pytest.param(range(4), 40, [0] * 4, GROUPS, None, id="one group of several"),
    ],
)  # fmt: skip
def test_whether_a_client_will_be_alone_is_known_before(
    here: range, size: int, kinds: list[int] | None, keys: dict[str, Any], found: Any
) -> None:
    told = first_alone(here, size, kinds, **keys)
    assert (told is not None) if found is True else told == found
