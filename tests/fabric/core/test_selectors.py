"""Conditions on labels mean what they mean in Ray and Kubernetes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from fabric_specs import conditions, labels, words
from fedpilot.fabric import DoesNotExist, Exists, In, NotIn
from fedpilot.fabric.core.selectors import Condition, check_label, matches, parse, to_ray


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("a", In("a")),
        ("in(a,b)", In("a", "b")),
        ("in(b, a, a)", In("a", "b")),
        ("in(a)", In("a")),
        ("!a", NotIn("a")),
        ("!in(a,b)", NotIn("a", "b")),
        ("exists()", Exists()),
        ("!exists()", DoesNotExist()),
        ("exists", In("exists")),
    ],
)
def test_a_condition_as_text(text: str, condition: Condition) -> None:
    assert parse(text) == condition


@given(condition=conditions)
def test_text_says_all_of_a_condition(condition: Condition) -> None:
    assert parse(str(condition)) == condition


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
        pytest.param("in(a,b)", "c", False, id="none of several does not match"),
        pytest.param("!in(a,b)", "c", True, id="a denied list matches what is not on it"),
        pytest.param("!in(a,b)", "a", False, id="a denied list does not match what is on it"),
        pytest.param("!in(a,b)", None, True, id="a missing label is on no list"),
        pytest.param("exists()", "a", True, id="a label that is there exists"),
        pytest.param("exists()", None, False, id="a missing label does not exist"),
        pytest.param("!exists()", None, True, id="a missing label is what is wanted"),
        pytest.param("!exists()", "a", False, id="a label that is there is not wanted"),
    ],
)
def test_one_condition(condition: str, label: str | None, expected: bool) -> None:
    here = {} if label is None else {"zone": label}
    assert matches({"zone": parse(condition)}, here) is expected


def test_every_condition_must_hold() -> None:
    here = {"zone": "z1", "disk": "ssd"}
    assert matches({"zone": In("z1"), "disk": NotIn("hdd")}, here)
    assert not matches({"zone": In("z1"), "disk": In("hdd")}, here)


@pytest.mark.parametrize(
    "text", ["", "in()", "in(a,)", "in(a", "a,b", "!!a", "not a", "-a", "a" * 64, "exists(a)"]
)
def test_what_has_no_meaning_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse(text)


@pytest.mark.parametrize(
    "make", [lambda: In(), lambda: NotIn(), lambda: In("a,b"), lambda: NotIn("")]
)
def test_values_that_ray_does_not_take_are_refused(make: Callable[[], Condition]) -> None:
    with pytest.raises(ValueError, match="expected"):
        make()


@pytest.mark.parametrize("label", ["", "sp ce", "a/b/c", "/a", "a/", "a" * 64])
def test_labels_that_ray_does_not_take_are_refused(label: str) -> None:
    with pytest.raises(ValueError, match="expected a label"):
        check_label(label)


@given(
    selector=st.dictionaries(words, conditions, max_size=3), machines=st.lists(labels, max_size=4)
)
def test_ray_is_told_the_same(
    selector: dict[str, Condition], machines: list[dict[str, str]]
) -> None:
    missing = any(
        isinstance(condition, Exists) and not any(label in machine for machine in machines)
        for label, condition in selector.items()
    )
    if missing:
        with pytest.raises(ValueError, match="no machine has the label"):
            to_ray(selector, machines)
        return
    told = {label: parse(text) for label, text in to_ray(selector, machines).items()}
    assert not any(isinstance(c, Exists | DoesNotExist) for c in told.values())
    for machine in machines:
        assert matches(told, machine) == matches(selector, machine)
