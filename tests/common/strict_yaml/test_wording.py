"""Types and values in plain words: what a message says is allowed, and what was found."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from annotated_types import Ge, Le, Lt

from fedpilot.common.strict_yaml.wording import type_in_words, value_in_words


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        pytest.param(
            Annotated[int, Ge(0), Le(1048577)],
            "a whole number of at least 0 and at most 1048577",
            id="a large bound has all its digits",
        ),
        pytest.param(
            Annotated[int, Lt(2**63)], "a whole number below 2^63", id="a power of two is one"
        ),
        pytest.param(Annotated[float, Ge(0.001)], "a number of at least 0.001", id="a fraction"),
        pytest.param(
            Annotated[float, Le(1048577.0)], "a number at most 1048577", id="a large fraction"
        ),
    ],
)
def test_a_type_is_named_with_its_bounds(kind: Any, words: str) -> None:
    assert type_in_words(kind) == words


@pytest.mark.parametrize(
    ("value", "words"), [(1048577, "the number 1048577"), (1048577.5, "the number 1048577.5")]
)
def test_a_number_has_all_its_digits(value: float, words: str) -> None:
    assert value_in_words(value) == words
