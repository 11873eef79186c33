"""Which way of computing a chunk is chosen: by facts of the model and the config, with a reason."""

from __future__ import annotations

import hashlib
import itertools
import json

import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.execution.cost_model import NEWEST, TABLES, costs_of
from fedpilot.federated.core.execution.execution import (
    AS_CONFIGURED,
    LARGEST,
    MEMORY_SHARE,
    SEQUENTIAL_CHUNK,
    Choice,
    ExecutionWish,
    decide,
    how_many_fit,
)
from fedpilot.federated.core.execution.facts import (
    COPIES,
    FIGURED_MEMORY,
    Circumstances,
    Execution,
    ExecutionKind,
    Layer,
    LayerKind,
    ModelFacts,
)

ALONE = Execution(ExecutionKind.SEQUENTIAL, SEQUENTIAL_CHUNK)
NO = {kind: "no" for kind in (ExecutionKind.COMPILED, ExecutionKind.FOLDED, ExecutionKind.MAPPED)}


def mlp(*widths: int, activation: LayerKind = LayerKind.POINTWISE) -> ModelFacts:
    """A chain of dense layers."""
    layers: list[Layer] = []
    for before, after in itertools.pairwise(widths):
        layers += [Layer(LayerKind.LINEAR, after, before * after), Layer(activation, after)]
    numbers = sum(a * b + b for a, b in itertools.pairwise(widths))
    return ModelFacts(
        layers=tuple(layers[:-1]),
        trained=numbers,
        tensors=2 * (len(widths) - 1),
        inputs=widths[0],
        itemsize=4,
        widths=widths,
    )


def large_cnn() -> ModelFacts:
    layers = (
        Layer(LayerKind.CONVOLUTION, 28_800, 28_800 * 27),
        Layer(LayerKind.CONVOLUTION, 50_176, 50_176 * 288),
        Layer(LayerKind.POOLING, 50_176),
        Layer(LayerKind.LINEAR, 128, 12_544 * 128),
    )
    return ModelFacts(layers, 1_600_000, 8, 3072, 4)


DIGITS, WHERE = mlp(64, 128, 10), Circumstances(batch_size=10, rule="momentum", cohort=25)


@pytest.mark.parametrize(
    ("model", "refused", "execution"),
    [
        pytest.param(DIGITS, (), Execution(ExecutionKind.COMPILED, 25), id="a chain"),
        pytest.param(
            DIGITS, (ExecutionKind.COMPILED,), Execution(ExecutionKind.FOLDED, 25), id="no kernel"
        ),
        pytest.param(
            DIGITS,
            (ExecutionKind.COMPILED, ExecutionKind.FOLDED),
            Execution(ExecutionKind.MAPPED, 25),
            id="nor folded",
        ),
        pytest.param(DIGITS, tuple(NO), ALONE, id="nothing but one by one"),
        pytest.param(
            large_cnn(), (ExecutionKind.COMPILED, ExecutionKind.MAPPED), ALONE, id="work enough"
        ),
    ],
)
def test_what_is_chosen(
    model: ModelFacts, refused: tuple[ExecutionKind, ...], execution: Execution
) -> None:
    assert decide(model, WHERE, dict.fromkeys(refused, "no")).execution == execution


def test_reasons() -> None:
    assert decide(DIGITS, WHERE, NO).reason == "compiled: no; folded: no; mapped: no"
    assert decide(DIGITS, WHERE, {}).reason.endswith("x as fast as one by one")
    assert (
        "several at once would cost"
        in decide(large_cnn(), WHERE, {ExecutionKind.COMPILED: ""}).reason
    )


@pytest.mark.parametrize("kind", ExecutionKind)
def test_what_is_named_is_taken_whatever_it_costs(kind: ExecutionKind) -> None:
    wish = ExecutionWish(kind, 7)
    assert decide(large_cnn(), WHERE, {}, wish) == Choice(Execution(kind, 7), AS_CONFIGURED)
    size = decide(DIGITS, WHERE, {}, ExecutionWish(kind)).execution.chunk_size
    assert size == SEQUENTIAL_CHUNK if kind is ExecutionKind.SEQUENTIAL else size <= WHERE.cohort


@given(
    st.lists(st.integers(1, 2000), min_size=2, max_size=5),
    st.integers(1, 512),
    st.sampled_from(sorted(COPIES)),
    st.integers(1, 5000),
    st.integers(1 << 10, 1 << 36),
    st.sampled_from(["cpu", "cuda"]),
)
def test_a_chunk_can_be_filled_and_fits(
    widths: list[int], batch: int, rule: str, cohort: int, memory: int, device: str
) -> None:
    where = Circumstances(batch, rule, cohort, memory, device)
    refused = {} if device == "cpu" else {ExecutionKind.COMPILED: "a GPU"}
    choice = decide(mlp(*widths), where, refused)
    assert choice == decide(mlp(*widths), where, refused), "nothing else decides"
    if choice.execution.kind is not ExecutionKind.SEQUENTIAL:
        assert 1 <= choice.execution.chunk_size <= min(LARGEST[device], cohort)
    costs = costs_of([choice.execution, ALONE], mlp(*widths), where)
    assert all(cost > 0 for cost in costs.values())


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_what_fits_leaves_most_of_the_memory(each: int, memory: int) -> None:
    fit = how_many_fit(each, memory)
    assert fit >= 1, "one client always trains"
    assert fit == 1 or fit * each <= memory * MEMORY_SHARE
    assert (fit + 1) * max(1, each) > int(memory * MEMORY_SHARE)


def test_a_cost_model_that_has_a_number_is_never_changed() -> None:
    """Runs say which one decided; what is better gets the next number."""
    assert max(TABLES) == NEWEST
    digests = {
        number: hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]
        for number, table in TABLES.items()
    }
    assert digests == {1: "be4105027aa26519"}
    facts = [DIGITS, mlp(784, 200, 200, 10, activation=LayerKind.SMOOTH), large_cnn()]
    ways = [Execution(kind, size) for kind in ExecutionKind for size in (1, 16)]
    found = [
        round(cost, 6)
        for model in facts
        for device in ("cpu", "cuda")
        for where in (Circumstances(10, "adam", 20, FIGURED_MEMORY, device),)
        for way in ways
        if way.kind is not ExecutionKind.COMPILED or device == "cpu"
        for cost in costs_of([way], model, where, 1).values()
    ]
    text = json.dumps(found)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "49f05d61c078ba42"
