"""Types and values in plain words: what a message says is allowed, and what was found."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from annotated_types import Ge, Le, Lt
from pydantic import Field

from fedpilot.common.strict_yaml.records import Strict
from fedpilot.common.strict_yaml.wording import keys_of, type_in_words, value_in_words


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


class _Base(Strict):
    shared: int = 0
    """What both
    have."""


class _Inner(Strict):
    """A section of its own."""


class _Outer(_Base):
    from_: int = Field(default=0, alias="from")
    """Whence."""
    inner: _Inner = _Inner()
    silent: int = 0


def test_a_key_means_what_stands_under_it_or_what_its_section_is() -> None:
    assert {key.name: key.meaning for key in keys_of(_Outer)} == {
        "shared": "What both have.",
        "from": "Whence.",
        "inner": "A section of its own.",
        "silent": "",
    }
