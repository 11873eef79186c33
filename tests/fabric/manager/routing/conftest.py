"""A router on two machines."""

from __future__ import annotations

import pytest

from router_bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench(a=4, b=4)
