"""Reads Kubernetes quantities, such as `500m`, `4Gi` or `1e3`, exactly."""

from __future__ import annotations

import re
from fractions import Fraction

IN_WORDS = "a quantity of at least 0 and at most 10^18, such as 2, 500m or 4Gi"
MOST = 10**18
_FORM = re.compile(
    r"([+-]?)([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})"
    r"(?:[eE]([+-]?[0-9]{1,2})|([KMGTPE]i|[numkMGTPE]))?"
)
_FACTORS = {
    **{f"{letter}i": Fraction(1024 ** (i + 1)) for i, letter in enumerate("KMGTPE")},
    **{letter: Fraction(1000 ** (i + 1)) for i, letter in enumerate("kMGTPE")},
    **{letter: Fraction(1, 1000 ** (i + 1)) for i, letter in enumerate("mun")},
}


def quantity_of(value: object) -> Fraction | None:
    """The amount that a text or a number stands for; None if it is no amount from 0 to 10^18."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    found = _FORM.fullmatch(str(value))
    if found is None:
        return None
    sign, digits, exponent, suffix = found.groups()
    amount = Fraction(f"0{digits.removesuffix('.')}")
    amount *= Fraction(10) ** int(exponent or 0) * _FACTORS.get(suffix, Fraction(1))
    return amount if amount <= MOST and (sign != "-" or not amount) else None
