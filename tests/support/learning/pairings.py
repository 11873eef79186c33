"""Which combinations of two lists of cases `make test` runs, and which are left to `make soak`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def paired(cases: Iterable[Any], others: Sequence[str], each: int = 1) -> list[Any]:
    """All pairs (case, other); those beyond `each` others per case are marked `soak`.

    The others take turns, so that every case and every other is tried by `make test`. A case is
    a value, or a `pytest.param` of several, and `others` are names.
    """
    pairs = []
    for turn, case in enumerate(cases):
        values, name = (case.values, case.id) if hasattr(case, "values") else ((case,), str(case))
        for place, other in enumerate(others):
            soon = (place - turn * each) % len(others) < each
            marks = () if soon else pytest.mark.soak
            pairs.append(pytest.param(*values, other, id=f"{name}-{other}", marks=marks))
    return pairs
