"""Selectors mean what Ray's label selectors mean."""

from __future__ import annotations

import pytest

from fedpilot.fabric.core.selectors import matches, parse


@pytest.mark.parametrize(
    ("condition", "label", "expected"),
    [
        pytest.param("a", "a", True, id="a value matches itself"),
        pytest.param("a", "b", False, id="a value matches no other"),
        pytest.param("a", None, False, id="a missing label equals nothing"),
        pytest.param("!a", "b", True, id="a denial matches another value"),
        pytest.param("!a", "a", False, id="a denial does not match the value"),
        pytest.param("!a", None, True, id="a missing label satisfies a denial"),
        pytest.param("in(a,b)", "b", True, id="one of several matches"),
        pytest.param("in(a, b)", "b", True, id="spaces in a list do not count"),
        pytest.param("in(a,b)", "c", False, id="none of several does not match"),
        pytest.param("!in(a,b)", "c", True, id="a denied list matches what is not on it"),
        pytest.param("!in(a,b)", "a", False, id="a denied list does not match what is on it"),
        pytest.param("!in(a,b)", None, True, id="a missing label is on no list"),
    ],
)
def test_one_condition(condition: str, label: str | None, expected: bool) -> None:
    labels = {} if label is None else {"zone": label}
    assert matches({"zone": condition}, labels) is expected


def test_every_condition_must_hold() -> None:
    labels = {"zone": "z1", "disk": "ssd"}
    assert matches({"zone": "z1", "disk": "!hdd"}, labels)
    assert not matches({"zone": "z1", "disk": "hdd"}, labels)


@pytest.mark.parametrize("condition", ["", "in()", "in(a,)", "in(a", "a,b", "!!a", "not a"])
def test_what_has_no_meaning_is_refused(condition: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse(condition)
