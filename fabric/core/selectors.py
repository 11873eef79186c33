"""Whether a machine's labels satisfy a selector, in the forms Ray's label selectors have."""

from __future__ import annotations

import re
from collections.abc import Mapping

_FORM = re.compile(r"(?P<deny>!?)(?:in\((?P<many>[^()]*)\)|(?P<one>[^!(),\s]+))")


def parse(condition: str) -> tuple[bool, frozenset[str]]:
    """Read `a`, `!a`, `in(a,b)` or `!in(a,b)` as (is it a denial?, the values it names)."""
    found = _FORM.fullmatch(condition.strip())
    if found is None:
        raise ValueError(f"expected 'a', '!a', 'in(a,b)' or '!in(a,b)', found {condition!r}")
    values = found["one"] or found["many"] or ""
    names = frozenset(value.strip() for value in values.split(","))
    if "" in names:
        raise ValueError(f"expected values between the commas, found {condition!r}")
    return bool(found["deny"]), names


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Say whether every condition holds; a label that a machine lacks satisfies denials only."""
    for label, condition in selector.items():
        denied, values = parse(condition)
        if (labels.get(label) in values) == denied:
            return False
    return True
