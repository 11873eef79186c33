"""On a graph the clients' own models are evaluated too: their mean, and the worst tenth."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from federations import CLIENTS, ROUNDS, Lab, on_a_graph, timeless
from fedpilot.federated.core.rounds.participation import SiteRefused
from fedpilot.federated.core.state import Array
from fedpilot.federated.errors import ConfigError
from graph_runs import NAMES, nodes_of, run_over
from lying_sites import Change, LyingSite
from pairings import paired


def accuracies(nodes: dict[str, Array], samples: list[tuple[Array, Array]]) -> list[float]:
    """Of a linear model per client, each on its samples."""
    weights, biases = nodes["0.weight"], nodes["0.bias"]
    return [
        float(((x @ weights[at].T + biases[at]).argmax(axis=1) == y).mean())
        for at, (x, y) in enumerate(samples)
    ]


@pytest.mark.parametrize(
    ("where", "strategy"), paired(["coordinator", "sites"], ["dpsgd", "push_sum"])
)
def test_scores_are_those_of_the_clients_models(where: str, strategy: str, lab: Lab) -> None:
    keys = on_a_graph(strategy=strategy, evaluation__where=where, evaluation__nodes="all")
    with lab.federation(**keys) as federation:
        data = federation.loaded.inputs.data
        result = federation.run(run_id="r")
    own = [data.partition.indices(client) for client in range(CLIENTS)]
    samples = [(data.x[rows], data.y[rows]) for rows in own]
    if where == "coordinator":
        samples = [(data.test_x, data.test_y)] * CLIENTS
    found = sorted(accuracies(nodes_of(lab.runs / "r"), samples))
    row = result.rows[-1]
    assert row["node_accuracy"] == pytest.approx(np.mean(found))
    assert row["worst_node_accuracy"] == pytest.approx(np.mean(found[:2]))
    assert row["worst_node_accuracy"] < row["node_accuracy"]
    assert row["node_accuracy"] != row["accuracy"]
    with (lab.runs / "r" / "metrics.csv").open() as file:
        assert [float(each["node_accuracy"]) for each in csv.DictReader(file)] == [
            each["node_accuracy"] for each in result.rows
        ]


def test_scores_are_found_by_any_number_of_sites_and_workers(lab: Lab) -> None:
    keys = {"evaluation__where": "sites", "evaluation__nodes": "all"}
    rows = [
        timeless(run_over(lab, NAMES[:sites], resources__workers=workers, **keys).rows)
        for sites, workers in ((1, 1), (1, 4), (2, 2), (3, 1))
    ]
    assert all(each == rows[0] for each in rows[1:])
    assert len({row["node_accuracy"] for row in rows[0]}) == ROUNDS


def test_many_models_go_to_the_workers_some_at_a_time(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = lab.run(**on_a_graph(), resources__workers=1)
    monkeypatch.setattr("fedpilot.federated.site.rounds.node_evaluation.BYTES_AT_ONCE", 1)
    assert timeless(lab.run(**on_a_graph(), resources__workers=1).rows) == timeless(whole.rows)


def test_only_some_clients_are_evaluated_unless_all_are_asked_for(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpilot.federated.core.rounds.node_scores.SAMPLED_NODES", 3)
    every, left_out, sampled = (
        lab.run(**on_a_graph(evaluation__nodes=which)).rows[-1]
        for which in ("all", None, "sampled")
    )
    assert left_out["node_accuracy"] == sampled["node_accuracy"] != every["node_accuracy"]


def test_a_round_that_evaluates_nothing_evaluates_no_client(lab: Lab) -> None:
    rows = lab.run(**on_a_graph(evaluation__every=3)).rows
    assert [row["round"] for row in rows if "node_accuracy" in row] == [3, 4]


def test_nobodys_model_is_evaluated_if_the_config_says_so(lab: Lab) -> None:
    without, with_ = (
        lab.run(**on_a_graph(evaluation__nodes=which)) for which in ("none", "sampled")
    )
    assert "node_accuracy" not in without.rows[-1]
    assert without.digest == with_.digest


def test_clients_that_share_a_model_have_none_to_evaluate(lab: Lab) -> None:
    with pytest.raises(ConfigError, match=r"(?s)evaluation\.nodes.*share a model"):
        lab.federation(evaluation__nodes="all")


def changed(name: str, change: Callable[[Array], Array]) -> Change:
    return lambda answer: replace(
        answer, tensors={**answer.tensors, name: change(answer.tensors[name])}
    )


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        pytest.param(changed("correct", lambda a: a + 10**6), "correct", id="more than there are"),
        pytest.param(changed("correct", lambda a: -a - 1), "correct", id="fewer than none"),
        pytest.param(changed("samples", lambda a: a + 1), "samples", id="others' samples"),
        pytest.param(changed("samples", lambda a: a[1:]), "samples", id="too few clients"),
        pytest.param(changed("correct", lambda a: a * 1.0), "float64", id="no counts"),
        pytest.param(lambda answer: replace(answer, tensors={}), "none", id="nothing"),
    ],
)
def test_a_site_whose_counts_cannot_be_is_named(
    lie: Change, said: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpilot.federated.federation.sites.sources.InProcessSite", LyingSite)
    monkeypatch.setattr(LyingSite, "about", "evaluate_nodes")
    monkeypatch.setattr(LyingSite, "lies", {"west": lie})
    keys: dict[str, Any] = {"evaluation__where": "sites"}
    with pytest.raises(SiteRefused, match=f"west.*{said}"):
        run_over(lab, NAMES, **keys)
