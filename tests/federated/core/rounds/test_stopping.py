"""Which round is the best and when to end follow from the history alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.rounds.stopping import Progress

NAN = math.nan
values = st.one_of(st.just(NAN), st.floats(0, 1))


def after(history: list[float], **rules: Any) -> Progress:
    progress = Progress(**({"metric": "accuracy"} | rules))
    for number, value in enumerate(history, start=1):
        progress = progress.after(number, value)
    return progress


@pytest.mark.parametrize(
    ("metric", "history", "best", "best_round"),
    [
        pytest.param("accuracy", [0.1, 0.5, 0.3], 0.5, 2, id="the highest accuracy"),
        pytest.param("loss", [0.9, 0.2, 0.3], 0.2, 2, id="the lowest loss"),
        pytest.param("accuracy", [0.5, 0.5, 0.5], 0.5, 1, id="the first of equals"),
        pytest.param("accuracy", [NAN, 0.0], 0.0, 2, id="anything is better than no number"),
        pytest.param("loss", [0.3, NAN, 0.4], 0.3, 1, id="no number is never better"),
        pytest.param("accuracy", [0.5, 0.5000001], 0.5000001, 2, id="by however little"),
        pytest.param("loss", [math.inf, 3.0], 3.0, 2, id="a finite loss beats an infinite one"),
        pytest.param("accuracy", [-0.5, -0.2], -0.2, 2, id="below zero"),
    ],
)
def test_the_best_round(metric: str, history: list[float], best: float, best_round: int) -> None:
    progress = after(history, metric=metric)
    assert (progress.best, progress.best_round) == (best, best_round)
    assert progress.stop_reason() is None


def test_before_anything_was_evaluated_there_is_no_best_and_no_reason() -> None:
    progress = Progress(metric="loss", patience=1, target=0.5)
    assert math.isnan(progress.best)
    assert progress.best_round == 0
    assert progress.stop_reason() is None


@pytest.mark.parametrize(
    ("rules", "history", "stops_after"),
    [
        pytest.param({"patience": 2}, [0.5, 0.4, 0.4], 3, id="two without improvement"),
        pytest.param({"patience": 2}, [0.5, 0.4, 0.6, 0.5, 0.5], 5, id="improvement starts anew"),
        pytest.param({"patience": 1}, [0.1, 0.2, 0.3, 0.3], 4, id="standing still is none"),
        pytest.param({"patience": 2}, [NAN, NAN], 2, id="not a number is no improvement"),
        pytest.param({"patience": 2}, [0.5, NAN, NAN], 3, id="nor after a number"),
        pytest.param({"patience": 2}, [NAN, 0.1, 0.1, 0.1], 4, id="the first number is one"),
        pytest.param(
            {"patience": 2, "min_delta": 0.1}, [0.5, 0.55, 0.59], 3, id="too small improvements"
        ),
        pytest.param(
            {"patience": 2, "min_delta": 0.1}, [0.5, 0.55, 0.61, 0.65], None,
            id="small improvements add up",
        ),
        pytest.param({"target": 0.9}, [0.5, 0.9, 0.1], 2, id="the target itself is enough"),
        pytest.param({"target": 0.9}, [0.5, 0.8999], None, id="nearly is not"),
        pytest.param({"target": 0.0}, [NAN, NAN], None, id="no number reaches no target"),
        pytest.param({"target": 0.0}, [0.0], 1, id="a target of zero"),
        pytest.param({"metric": "loss", "target": 0.2}, [0.5, 0.2], 2, id="a loss at the target"),
        pytest.param(
            {"metric": "loss", "patience": 1, "min_delta": 0.1}, [0.5, 0.41], 2,
            id="a loss that fell too little",
        ),
        pytest.param({"target": 0.9, "patience": 1}, [0.1, 0.05], 2, id="whichever comes first"),
        pytest.param({}, [0.5] * 9, None, id="without rules it never stops"),
    ],
)  # fmt: skip
def test_when_the_run_ends(
    rules: dict[str, Any], history: list[float], stops_after: int | None
) -> None:
    stopped = [
        n
        for n in range(1, len(history) + 1)
        if after(history[:n], **rules).stop_reason() is not None
    ]
    assert (stopped[0] if stopped else None) == stops_after


@pytest.mark.parametrize(
    ("rules", "history", "words"),
    [
        pytest.param({"target": 0.9}, [0.95], ["accuracy", "target", "0.9"], id="the target"),
        pytest.param(
            {"metric": "loss", "patience": 2}, [0.25, 1, 1], ["loss", "2", "0.2500", "round 1"],
            id="the patience",
        ),
    ],
)  # fmt: skip
def test_the_reason_says_which_rule_and_the_best(
    rules: dict[str, Any], history: list[float], words: list[str]
) -> None:
    reason = after(history, **rules).stop_reason()
    assert reason is not None
    assert all(word in reason for word in words)


@given(
    history=st.lists(values, max_size=30),
    metric=st.sampled_from(["accuracy", "loss"]),
    patience=st.none() | st.integers(1, 5),
    min_delta=st.floats(0, 0.5),
)
def test_a_replay_gives_the_same_and_the_best_is_the_best(
    history: list[float], metric: str, patience: int | None, min_delta: float
) -> None:
    rules = {"metric": metric, "patience": patience, "min_delta": min_delta}
    first, again = after(history, **rules), after(history, **rules)
    assert repr(first) == repr(again)
    numbers = [value for value in history if not math.isnan(value)]
    if numbers:
        best = max(numbers) if metric == "accuracy" else min(numbers)
        assert first.best == best
        assert history[first.best_round - 1] == best
        assert best not in history[: first.best_round - 1]
    else:
        assert first.best_round == 0
    assert first.waited <= len(history)
