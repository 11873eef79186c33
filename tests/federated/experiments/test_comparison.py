"""Runs that differ in their seeds alone are one point, with a mean and an interval."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from fedpilot.federated.experiments.comparison import (
    QUANTILES,
    RunFacts,
    document_of,
    flat,
    points_of,
    records_of,
    short_names,
    spread_of,
)


def run(name: str, seed: int = 0, accuracies: Any = (), **config: Any) -> RunFacts:
    rows = [
        {"round": number, "accuracy": value, "loss": 1.0 - value, "clients": 3}
        for number, value in enumerate(accuracies, start=1)
        if value is not None
    ]
    return RunFacts(name, f"runs/{name}", "finished", config, seed, rows, 2.0)


def test_runs_are_grouped_by_the_keys_that_differ() -> None:
    points = points_of(
        [
            run("a", 0, rate=0.1, size=8),
            run("b", 0, rate=0.2, size=8),
            run("c", 1, rate=0.1, size=8),
            run("d", 0, rate=0.2, size=8, momentum=0.9),
        ]
    )
    assert [[each.run_id for each in point.runs] for point in points] == [["a", "c"], ["b"], ["d"]]
    assert [dict(point.values) for point in points] == [
        {"rate": 0.1, "momentum": None},
        {"rate": 0.2, "momentum": None},
        {"rate": 0.2, "momentum": 0.9},
    ]


def test_runs_that_do_not_differ_are_one_point() -> None:
    (point,) = points_of([run("a", 0), run("b", 1)])
    assert point.values == {}
    assert point.label({}) == "all runs"


def test_names_and_folders_make_no_difference() -> None:
    config = {"run": {"name": "a"}, "outputs": {"folder": "x"}, "training": {"schedule": {"k": 1}}}
    assert flat(config) == {"training.schedule.k": 1}


def test_a_point_has_the_mean_and_its_interval() -> None:
    (point,) = points_of([run(name, seed, [0.5, seed]) for seed, name in enumerate("abc", start=1)])
    spread = point.spread("accuracy")
    assert spread is not None
    assert (spread.mean, spread.count) == (2.0, 3)
    assert spread.half_width == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)


def test_the_best_of_a_loss_is_the_least() -> None:
    facts = run("a", 0, [0.5, 0.9, 0.7])
    assert (facts.best("accuracy"), facts.last("accuracy")) == (0.9, 0.7)
    assert facts.best("loss") == pytest.approx(0.1)


def test_a_band_has_the_rounds_that_every_run_has() -> None:
    (point,) = points_of([run("a", 0, [0.1, 0.2, 0.3]), run("b", 1, [0.3, None, 0.5])])
    assert [(number, spread.mean) for number, spread in point.band("accuracy")] == [
        (1, pytest.approx(0.2)),
        (3, pytest.approx(0.4)),
    ]


def test_a_run_without_rounds_removes_nothing_from_the_others() -> None:
    (point,) = points_of([run("a", 0, [0.1, 0.2]), run("b", 1)])
    assert [(number, spread.count) for number, spread in point.band("accuracy")] == [(1, 1), (2, 1)]


def test_the_same_seed_again_says_nothing_new() -> None:
    (point,) = points_of([run("a", 0, [0.5]), run("b", 0, [0.5]), run("c", 1, [0.7])])
    spread = point.spread("accuracy")
    assert spread is not None
    assert (spread.mean, spread.count) == (pytest.approx(0.6), 2)


def test_json_has_no_number_that_is_none() -> None:
    found = document_of(points_of([run("a", 0, [math.nan]), run("b", 1, [math.inf])]))
    json.dumps(found, allow_nan=False)
    assert found["points"][0]["accuracy"]["mean"] is None


def test_one_value_and_values_that_are_not_finite_have_no_interval() -> None:
    assert spread_of([]) is None
    one, infinite = spread_of([0.5]), spread_of([-math.inf, math.inf])
    assert one is not None
    assert (one.mean, one.half_width) == (0.5, None)
    assert infinite is not None
    assert infinite.half_width is None


@pytest.mark.parametrize("freedom", [1, 2, 3, 9, 30])
def test_the_quantiles_are_students(freedom: int) -> None:
    x = np.linspace(0.0, QUANTILES[freedom - 1], 200_001)
    scale = math.gamma((freedom + 1) / 2) / math.sqrt(freedom * math.pi) / math.gamma(freedom / 2)
    density = scale * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    assert 0.5 + np.trapezoid(density, x) == pytest.approx(0.975, abs=2e-6)


def test_short_names_tell_keys_apart() -> None:
    assert short_names(["training.learning_rate", "federation.server_learning_rate"]) == {
        "training.learning_rate": "learning_rate",
        "federation.server_learning_rate": "server_learning_rate",
    }
    assert short_names(["graph.degree", "model.degree"]) == {
        "graph.degree": "graph.degree",
        "model.degree": "model.degree",
    }


def test_records_have_points_and_measures_and_no_bookkeeping() -> None:
    first, second = records_of(
        points_of([run("a", 0, [0.5, 0.4], rate=1), run("b", 0, [], rate=2)])
    )
    assert first == {
        "run_id": "a",
        "status": "finished",
        "seed": 0,
        "rate": 1,
        "rounds": 2,
        "accuracy": 0.4,
        "loss": 0.6,
        "best_accuracy": 0.5,
        "best_loss": 0.5,
        "seconds": 2.0,
    }
    assert (second["rounds"], second["accuracy"]) == (0, None)
