"""Sizes mean the same in every file that people write."""

from __future__ import annotations

import pytest

from fedpilot.common.text.amounts import bytes_of


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        pytest.param("1048576", 2**20, id="bytes"),
        pytest.param("7B", 7, id="bytes by name"),
        pytest.param("100MB", 10**8, id="a thousand times a thousand"),
        pytest.param("16GiB", 2**34, id="powers of two"),
        pytest.param(" 1.5 KiB ", 1536, id="a part, with blanks"),
        pytest.param("16 gib", None, id="a unit that nobody spells so"),
        pytest.param("", None, id="nothing"),
        pytest.param("-1", None, id="less than nothing"),
        pytest.param("1e3", None, id="no plain number"),
        pytest.param("9" * 400, None, id="more than there is"),
    ],
)
def test_bytes_of_a_text(text: str, nbytes: int | None) -> None:
    assert bytes_of(text) == nbytes
