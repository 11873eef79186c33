"""Which way of computing a chunk is chosen: by facts, with a reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.execution import (
    LARGEST,
    MEMORY_SHARE,
    WORTH,
    Choice,
    Execution,
    Kind,
    Measured,
    choose,
    how_many_fit,
    sizes_to_try,
)

ALONE = Execution(Kind.SEQUENTIAL, 64)


def alone(seconds: float = 1.0) -> Measured:
    return Measured(ALONE, seconds)


def folded(seconds: float, size: int = 64) -> Measured:
    return Measured(Execution(Kind.FOLDED, size), seconds)


def compiled(seconds: float, size: int = 64) -> Measured:
    return Measured(Execution(Kind.COMPILED, size), seconds)


@pytest.mark.parametrize(
    ("together", "refused", "choice"),
    [
        pytest.param(
            [folded(0.1)], [], Choice(folded(0).execution, "10.0x as fast as one by one"),
            id="several at once are faster",
        ),
        pytest.param(
            [folded(0.5, 16), folded(0.25, 64)], [],
            Choice(Execution(Kind.FOLDED, 64), "4.0x as fast as one by one"),
            id="the faster size",
        ),
        pytest.param(
            [compiled(0.05), folded(0.1)], [],
            Choice(compiled(0).execution, "20.0x as fast as one by one"), id="the faster way",
        ),
        pytest.param(
            [compiled(0.2), folded(0.1)], ["mapped: it is not tried"],
            Choice(folded(0).execution, "10.0x as fast as one by one"),
            id="the faster way, whichever was measured first",
        ),
        pytest.param(
            [folded(0.5)], ["compiled: it is no chain"],
            Choice(folded(0).execution, "2.0x as fast as one by one"),
            id="what is refused does not stand in the way",
        ),
        pytest.param(
            [folded(0.9)], [], Choice(ALONE, "several at once are 1.1x as fast, not worth it"),
            id="a little faster is noise",
        ),
        pytest.param(
            [folded(4.0)], [], Choice(ALONE, "several at once are 0.2x as fast, not worth it"),
            id="slower",
        ),
        pytest.param(
            [], ["folded: it has batch norm", "mapped: so it has"],
            Choice(ALONE, "folded: it has batch norm; mapped: so it has"), id="refused",
        ),
        pytest.param([], [], Choice(ALONE, "several at once was not tried"), id="not tried"),
    ],
)  # fmt: skip
def test_what_is_chosen_and_why(
    together: list[Measured], refused: list[str], choice: Choice
) -> None:
    assert choose(alone(), together, refused) == choice


@given(
    st.floats(1e-6, 10.0),
    st.lists(
        st.tuples(st.sampled_from([compiled, folded]), st.floats(1e-6, 10.0)),
        min_size=1,
        max_size=4,
    ),
)
def test_several_at_once_are_chosen_where_they_are_clearly_faster_and_nowhere_else(
    one: float, others: list[tuple[Callable[[float, int], Measured], float]]
) -> None:
    measured = [of(seconds, size) for size, (of, seconds) in enumerate(others, 1)]
    found = choose(alone(one), measured, ()).execution
    times = [seconds for _, seconds in others]
    worth = one / min(times) >= WORTH
    assert found == (measured[times.index(min(times))].execution if worth else ALONE)


@given(st.sampled_from(["cpu", "cuda", "xpu"]), st.integers(1, 10**6), st.integers(1, 10**6))
def test_sizes_that_are_tried_can_be_filled_and_fit(device: str, cohort: int, most: int) -> None:
    sizes = sizes_to_try(device, cohort, most)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[0] >= 1
    assert sizes[-1] == min(LARGEST.get(device, LARGEST["cuda"]), cohort, most)


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_what_fits_leaves_most_of_the_memory(each: int, memory: int) -> None:
    fit = how_many_fit(each, memory)
    assert fit >= 1, "one client always trains"
    assert fit == 1 or fit * each <= memory * MEMORY_SHARE
    assert (fit + 1) * max(1, each) > int(memory * MEMORY_SHARE)
