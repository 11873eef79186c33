"""What goes into one answer begins with the first."""

from __future__ import annotations

import pytest

from fedpilot.mediator.server.services import paging


@pytest.mark.parametrize(
    ("sizes", "fit"),
    [([], 0), ([9], 1), ([2, 2, 2], 2), ([5, 1], 1), ([9, 1], 1), ([1, 2, 2, 1], 3)],
)
def test_what_goes_together_begins_with_the_first(sizes: list[int], fit: int) -> None:
    assert paging.how_many_fit(["x" * size for size in sizes], 5) == fit
