"""`reassign_every` is refused by name where no client can move."""

from __future__ import annotations

from typing import Any

import pytest

from federations import Lab
from fedpilot.federated.errors import ConfigError
from graph_runs import NAMES, over, run_over

ROUNDS = 7
MOVING = {"participation__reassign_every": 2, "federation__rounds": ROUNDS}


@pytest.mark.parametrize(
    ("keys", "key", "said"),
    [
        pytest.param(
            {"federation__topology": "star", "federation__aggregation_strategy": "fedavg"},
            "participation.reassign_every",
            "no client has a model of its own",
            id="a star",
        ),
        pytest.param(
            {
                "federation__topology": "star",
                "federation__aggregation_strategy": "fedavg",
                "training__client_update": "mine:update",
            },
            "participation.reassign_every",
            "`client_update` keeps stays at its site",
            id="what a client update keeps is not copied",
        ),
        pytest.param(
            {"federation__topology": "matching"},
            "participation.reassign_every",
            "another graph in each round",
            id="a graph that changes in each round",
        ),
        pytest.param(
            {"federation__assignment": "capacity"},
            "participation.reassign_every",
            "`assignment: locality`",
            id="an assignment that ignores the graph",
        ),
        pytest.param(
            {"graph__adapt": "similar"},
            "participation.reassign_every",
            "`graph.adapt`",
            id="a graph that adapts",
        ),
        pytest.param({"sites__count": 1}, "participation.reassign_every", "one site", id="a site"),
        pytest.param(
            {"participation__reassign_every": ROUNDS},
            "participation.reassign_every",
            "before the last",
            id="nothing would be decided",
        ),
        pytest.param(
            {"participation__quorum": 0.5},
            "participation.reassign_every",
            "unequal rounds",
            id="models of unequal rounds",
        ),
        pytest.param(
            {"traffic__run_bytes": "1GB"},
            "traffic.run_bytes",
            "are not known before",
            id="a limit on bytes",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(
    keys: dict[str, Any], key: str, said: str, lab: Lab
) -> None:
    with pytest.raises(ConfigError) as refused:
        over(lab, NAMES, **{**MOVING, **keys})
    (problem,) = refused.value.problems
    assert problem.key == key
    assert said in f"{problem.found} {problem.allowed}"


def test_one_site_is_refused_before_anything_starts(lab: Lab) -> None:
    with pytest.raises(ConfigError, match=r"reassign_every.*one site"):
        run_over(lab, NAMES[:1], **MOVING)
