"""Conditions on labels, and whether a machine or a vnode meets them.

They are written as Ray's label selectors are, with two forms that Ray lacks:

| condition | text |
|---|---|
| `In("a")`, `In("a", "b")` | `a`, `in(a,b)` |
| `NotIn("a")`, `NotIn("a", "b")` | `!a`, `!in(a,b)` |
| `Exists()`, `DoesNotExist()` | `exists()`, `!exists()` |

As in Ray and Kubernetes, a machine without the label meets every `NotIn`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_WORD = r"[a-zA-Z0-9](?:[a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?"
_VALUE = re.compile(_WORD)
_KEY = re.compile(rf"(?:(?=[^/]{{1,253}}/){_WORD}(?:\.{_WORD})*/)?{_WORD}")
_FORM = re.compile(r"(?P<deny>!?)(?:in\((?P<many>[^()]*)\)|(?P<any>exists\(\))|(?P<one>[^!(),]+))")


def check_label(key: str) -> None:
    """Raise `ValueError` unless Ray accepts this label name, such as `zone` or `a.io/zone`."""
    if not _KEY.fullmatch(key):
        raise ValueError(
            f"expected a label of letters, digits, '-', '_' and '.', 63 at most, found {key!r}"
        )


def check_value(value: str) -> None:
    """Raise `ValueError` unless Ray accepts this label value in a selector."""
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise ValueError(
            f"expected a value of letters, digits, '-', '_' and '.', 63 at most, found {value!r}"
        )


@dataclass(frozen=True, slots=True, init=False)
class _Values:
    values: tuple[str, ...]
    """Sorted."""

    def __init__(self, *values: str) -> None:
        if not values:
            raise ValueError("expected at least one value, found none")
        for value in values:
            check_value(value)
        object.__setattr__(self, "values", tuple(sorted(set(values))))

    def __str__(self) -> str:
        return self.values[0] if len(self.values) == 1 else f"in({','.join(self.values)})"


@dataclass(frozen=True, slots=True, init=False)
class In(_Values):
    """The label has one of these values."""

    def holds(self, value: str | None) -> bool:
        return value in self.values


@dataclass(frozen=True, slots=True, init=False)
class NotIn(_Values):
    """The label has none of these values, or does not exist."""

    def holds(self, value: str | None) -> bool:
        return value not in self.values

    def __str__(self) -> str:
        return f"!{_Values.__str__(self)}"


@dataclass(frozen=True, slots=True)
class Exists:
    """The label exists, with any value."""

    def holds(self, value: str | None) -> bool:
        return value is not None

    def __str__(self) -> str:
        return "exists()"


@dataclass(frozen=True, slots=True)
class DoesNotExist:
    """The label does not exist."""

    def holds(self, value: str | None) -> bool:
        return value is None

    def __str__(self) -> str:
        return "!exists()"


Condition = In | NotIn | Exists | DoesNotExist
Selector = Mapping[str, Condition]
"""The condition for each label; all must hold."""


def parse(text: str) -> Condition:
    """Parse a condition; the inverse of `str`. ValueError if the text is not one."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"expected 'a', '!a', 'in(a,b)', '!in(a,b)', 'exists()' or '!exists()', found {text!r}"
        )
    if found["any"]:
        return DoesNotExist() if found["deny"] else Exists()
    values = [value.strip() for value in (found["one"] or found["many"]).split(",")]
    return NotIn(*values) if found["deny"] else In(*values)


def matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Whether these labels meet every condition."""
    return all(condition.holds(labels.get(label)) for label, condition in selector.items())


def to_ray(selector: Selector, machines: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """A selector for Ray, for a cluster whose machines have these labels.

    The label's values on these machines replace `Exists` and `DoesNotExist` (decision 15).
    ValueError for `Exists` if no machine has the label.
    """
    labels = list(machines)
    said = {}
    for label, condition in selector.items():
        values = sorted({machine[label] for machine in labels if machine.get(label)})
        match condition:
            case Exists():
                if not values:
                    raise ValueError(f"no machine has the label {label!r}")
                said[label] = str(In(*values))
            case DoesNotExist():
                if values:
                    said[label] = str(NotIn(*values))
            case In() | NotIn():
                said[label] = str(condition)
    return said


def describe(selector: Selector) -> str:
    """The conditions as users write them: `disk=ssd, zone=!in(a,b)`."""
    return ", ".join(f"{label}={selector[label]}" for label in sorted(selector))
