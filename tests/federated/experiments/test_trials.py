"""The trials of a sweep are all combinations, points as listed, or random ones that repeat."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fedpilot.federated import ConfigError, parse_config
from fedpilot.federated.config.resolved import deciding
from fedpilot.federated.config.schema import Sweep
from fedpilot.federated.config.telling import told
from fedpilot.federated.experiments.sweep_folder import checked_trials, trials_of_config
from fedpilot.federated.experiments.trials import SweepTrial, count_of, trials_of

RATE, SIZE = "training.learning_rate", "training.batch_size"
CONFIG: dict[str, Any] = {
    "federation": {"number_of_clients": 5},
    "model": {"model_type": "logistic_regression"},
    "data": {"dataset_type": "digits"},
}


def points(trials: Sequence[SweepTrial]) -> list[dict[str, Any]]:
    return [dict(each.point) for each in trials]


def test_points_are_all_combinations_and_each_has_every_seed() -> None:
    sweep = Sweep(axes={RATE: [0.1, 0.2], SIZE: [8, 16]}, seeds=[5, 6])
    trials = trials_of(sweep, random_seed=0)
    assert [(t.point[RATE], t.point[SIZE], t.seed) for t in trials] == [
        (rate, size, seed) for rate in (0.1, 0.2) for size in (8, 16) for seed in (5, 6)
    ]
    assert [t.number for t in trials] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert len({t.run_id for t in trials}) == len(trials) == count_of(sweep)


def test_listed_points_may_change_different_keys_and_the_seed_is_the_configs() -> None:
    listed = [{RATE: 0.1}, {SIZE: 4, "federation.rounds": 2}]
    trials = trials_of(Sweep(points=listed), random_seed=9)
    assert points(trials) == listed
    assert {t.seed for t in trials} == {9}


def test_a_trial_is_a_config_with_its_values_and_without_the_sweep() -> None:
    point = {RATE: 0.25, "federation.server_betas": [0.5, 0.6], "model.options.hidden": "ü😀="}
    trial = SweepTrial(1, point, seed=4)
    federation = {"number_of_clients": 5, "aggregation_strategy": "fedadam"}
    keys = {"federation": federation, "sweep": {"axes": {RATE: [1.0]}}}
    config = parse_config({**CONFIG, **keys}, trial.overrides)
    assert config.training.learning_rate == 0.25
    assert config.federation.server_betas == [0.5, 0.6]
    assert config.model.options == {"hidden": "ü😀="}
    assert (config.run.random_seed, config.sweep) == (4, None)


@given(
    seed=st.integers(0, 2**31),
    draws=st.integers(1, 12),
    low=st.floats(1e-6, 1.0),
    factor=st.floats(1.01, 1e6),
    first=st.integers(-5, 5),
    width=st.integers(1, 30),
)
def test_random_points_lie_in_their_ranges_and_depend_on_the_seed_alone(
    seed: int, draws: int, low: float, factor: float, first: int, width: int
) -> None:
    high = low * factor
    axes = {
        "a.linear": {"low": low, "high": high},
        "a.log": {"low": low, "high": high, "scale": "log"},
        "a.whole": {"low": first, "high": first + width},
        "a.whole_log": {"low": 1, "high": 1 + width, "scale": "log"},
        "a.listed": ["x", "y"],
    }
    sweep = Sweep(axes=axes, draws=draws)
    trials = trials_of(sweep, seed)
    assert points(trials) == points(trials_of(sweep, seed))
    assert len(trials) == draws == len({json.dumps(dict(t.point)) for t in trials})
    for point in points(trials):
        assert low <= point["a.linear"] <= high
        assert low * (1 - 1e-9) <= point["a.log"] <= high * (1 + 1e-9)
        assert isinstance(point["a.whole"], int)
        assert first <= point["a.whole"] <= first + width
        assert isinstance(point["a.whole_log"], int)
        assert 1 <= point["a.whole_log"] <= 1 + width
        assert point["a.listed"] in ("x", "y")


def test_more_draws_begin_with_the_same_points() -> None:
    axes = {RATE: {"low": 0.001, "high": 1.0, "scale": "log"}}
    few, more = (trials_of(Sweep(axes=axes, draws=n), 3) for n in (3, 8))
    assert points(more)[:3] == points(few)


def test_a_logarithmic_range_has_as_many_points_in_each_decade() -> None:
    axes = {RATE: {"low": 0.001, "high": 1.0, "scale": "log"}}
    rates = [point[RATE] for point in points(trials_of(Sweep(axes=axes, draws=900), 0))]
    decades = [sum(10**-e <= rate < 10 ** (1 - e) for rate in rates) for e in (3, 2, 1)]
    assert all(240 < count < 360 for count in decades)


def test_draws_end_where_the_axes_have_no_more_points() -> None:
    trials = trials_of(Sweep(axes={RATE: [0.1, 0.2], SIZE: [1, 2]}, draws=50), random_seed=0)
    assert len(trials) == 4


@pytest.mark.parametrize(
    ("sweep", "key", "found"),
    [
        ({}, "sweep.axes", "neither axes nor points"),
        ({"axes": {RATE: [1.0]}, "points": [{RATE: 1.0}]}, "sweep.axes", "both axes and points"),
        ({"points": [{RATE: 1.0}], "draws": 3}, "sweep.draws", "3 without axes"),
        ({"points": [{}]}, "sweep.points", "a point without keys"),
        ({"axes": {RATE: []}}, f"sweep.axes.{RATE}", "no value"),
        ({"axes": {RATE: 0.1}}, f"sweep.axes.{RATE}", "the number 0.1"),
        ({"axes": {RATE: {"low": 1, "high": 2}}}, f"sweep.axes.{RATE}", "a range"),
        (
            {"axes": {RATE: {"low": 2, "high": 1}}, "draws": 2},
            f"sweep.axes.{RATE}",
            "low 2, high 1",
        ),
        (
            {"axes": {RATE: {"low": 0, "high": 1, "scale": "log"}}, "draws": 2},
            f"sweep.axes.{RATE}.low",
            "the number 0",
        ),
        (
            {"axes": {RATE: {"low": 0, "high": 1, "scale": "exp"}}, "draws": 2},
            f"sweep.axes.{RATE}.scale",
            'the text "exp"',
        ),
        (
            {"axes": {RATE: {"low": 0, "high": 1, "steps": 3}}, "draws": 2},
            f"sweep.axes.{RATE}.steps",
            "an unknown key",
        ),
        ({"axes": {"run.random_seed": [1]}}, "sweep.axes.run.random_seed", "a key of `run`"),
        ({"axes": {"outputs": [{}]}}, "sweep.axes.outputs", "a key of `outputs`"),
        ({"points": [{"sweep.draws": 1}]}, "sweep.points[0].sweep.draws", "a key of `sweep`"),
        ({"points": [{RATE: 1.0}, {RATE: 1.0}]}, "sweep.points", "a point twice"),
        ({"axes": {RATE: [1.0, 1.0]}}, f"sweep.axes.{RATE}", "a value twice"),
        ({"axes": {"training": {"learning_rate": [1.0]}}}, "sweep.axes.training", "a section"),
        ({"axes": {RATE: [1.0]}, "seeds": [1, 1]}, "sweep.seeds", "a seed twice"),
    ],
)
def test_a_wrong_sweep_is_refused_by_its_key(sweep: dict[str, Any], key: str, found: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({**CONFIG, "sweep": sweep})
    (problem,) = caught.value.problems
    assert (problem.key, problem.found) == (key, found)


def test_a_point_that_is_no_config_is_refused_with_its_number() -> None:
    config = parse_config({**CONFIG, "sweep": {"axes": {RATE: [0.1, -1.0]}}})
    with pytest.raises(ConfigError) as caught:
        checked_trials(config)
    (problem,) = caught.value.problems
    assert problem.key == RATE
    assert problem.where == f"point 2 of the sweep, {RATE}=-1.0"


def test_a_sweep_decides_no_bits_and_no_site_is_told() -> None:
    with_it = parse_config({**CONFIG, "sweep": {"axes": {RATE: [0.1, 0.2]}}})
    assert deciding(with_it) == deciding(parse_config(CONFIG))
    assert told(with_it) == told(parse_config(CONFIG))


def test_a_config_without_a_sweep_and_a_sweep_of_too_many_trials_are_refused() -> None:
    with pytest.raises(ConfigError, match="no such section"):
        trials_of_config(parse_config(CONFIG))
    hundred = [0.1 + i / 1000 for i in range(101)]
    axes = {RATE: hundred, "federation.server_learning_rate": hundred}
    with pytest.raises(ConfigError, match="10,201 trials"):
        trials_of_config(parse_config({**CONFIG, "sweep": {"axes": axes}}))
