"""Names that are made of others are names that Ray takes, and say as much as there is room for."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from fedpilot.common.text.names import joined_name
from fedpilot.fabric.core.selectors import check_value

PARTS = st.lists(st.text(max_size=90), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        pytest.param(
            ("quickstart-20260102-030405-a1b2c3d4", "alice", "f00d12", "local"),
            "quickstart-20260102-030405-a1b2c3d4-alice-f00d12-local",
            id="a run as it is called by itself, whole",
        ),
        pytest.param(("run", "bob@example.org"), "run-bob-example.org", id="an address for a user"),
        pytest.param(("run", "uid 1000", ""), "run-uid-1000", id="a user without a name"),
        pytest.param(
            ("a-very-long-name-of-a-config-20260102-030405-a1b2c3d4", "alice", "f00d12", "local"),
            "of-a-config-20260102-030405-a1b2c3d4-alice-f00d12-local-MARK",
            id="the end of a long run's id, which tells it from others",
        ),
    ],
)
def test_a_name_says_its_parts(parts: tuple[str, ...], name: str) -> None:
    found = joined_name(*parts)
    assert found == (f"{name[:-4]}{found[-6:]}" if name.endswith("MARK") else name)


@given(PARTS)
def test_every_name_is_one_that_ray_takes(parts: list[str]) -> None:
    check_value(joined_name(*parts))


@given(st.text("abc-", min_size=80, max_size=90), st.text("abc-", min_size=80, max_size=90))
def test_long_names_of_different_parts_differ(one: str, other: str) -> None:
    assert (joined_name(one) == joined_name(other)) is (one == other)
