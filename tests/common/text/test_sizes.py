"""Sizes mean the same in every file that people write."""

from __future__ import annotations

import pytest

from fedpilot.common.text.amounts import bytes_of, rate_of, seconds_of


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        pytest.param("1048576", 2**20, id="bytes"),
        pytest.param("7B", 7, id="bytes by name"),
        pytest.param("100MB", 10**8, id="a thousand times a thousand"),
        pytest.param("16GiB", 2**34, id="powers of two"),
        pytest.param(" 1.5 KiB ", 1536, id="a part, with blanks"),
        pytest.param("16 gib", None, id="an unknown unit"),
        pytest.param("", None, id="nothing"),
        pytest.param("-1", None, id="less than nothing"),
        pytest.param("1e3", None, id="no plain number"),
        pytest.param("9" * 400, None, id="more than there is"),
    ],
)
def test_bytes_of_a_text(text: str, nbytes: int | None) -> None:
    assert bytes_of(text) == nbytes


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        pytest.param("100Mbit/s", 12.5e6, id="bits are eighths of bytes"),
        pytest.param(" 8 bit/s ", 1.0, id="bits without a prefix"),
        pytest.param("1.5 Gbit/s", 187.5e6, id="a part, with blanks"),
        pytest.param("64 kbit/s", 8_000, id="a small k"),
        pytest.param("12.5MB/s", 12.5e6, id="bytes"),
        pytest.param("100 mbit/s", None, id="thousandths of bits"),
        pytest.param("2KiB/s", 2048.0, id="powers of two"),
        pytest.param("0Mbit/s", None, id="no speed at all"),
        pytest.param("0.4B/s", None, id="less than a byte"),
        pytest.param("100", None, id="no unit"),
        pytest.param("100MB", None, id="a size"),
        pytest.param("100Mbps", None, id="an unknown unit"),
        pytest.param("-1MB/s", None, id="less than nothing"),
    ],
)
def test_bytes_per_second_of_a_text(text: str, rate: float | None) -> None:
    assert rate_of(text) == rate


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("2ms", 0.002, id="thousandths"),
        pytest.param("0.5 s", 0.5, id="seconds"),
        pytest.param("30us", 30e-6, id="millionths"),
        pytest.param("30µs", 30e-6, id="millionths, as they are printed"),
        pytest.param("2", None, id="no unit"),
        pytest.param("2 min", None, id="a unit that is too long"),
    ],
)
def test_seconds_of_a_text(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == pytest.approx(seconds)
