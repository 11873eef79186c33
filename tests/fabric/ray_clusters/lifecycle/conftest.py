"""A site whose declared Ray clusters end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from declaring_site import DeclaringSite


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DeclaringSite]:
    site = DeclaringSite(tmp_path)
    try:
        yield site
    finally:
        site.end()
