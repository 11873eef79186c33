"""What a site says of its link is taken for what it can be."""

from __future__ import annotations

from typing import Any

import pytest

from fedpilot.mediator.core.links import LinkSpeed


@pytest.mark.parametrize(
    "value", [10**400, 1e400, float("nan"), 0, -1, True, "fast", None, [1]], ids=repr
)
def test_nonsense_counts_as_not_known(value: Any) -> None:
    assert LinkSpeed.told({"up": value, "down": 5}) == LinkSpeed(down=5.0)


@pytest.mark.parametrize("values", [None, 3, [], "up"], ids=repr)
def test_what_is_no_link_is_not_known(values: Any) -> None:
    assert LinkSpeed.told(values) == LinkSpeed()
