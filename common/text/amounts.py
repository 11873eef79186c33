"""Formats amounts for messages, tables and logs, and parses sizes, speeds and times.

1 KB is 1000 B, 1 KiB 1024.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

DASH = "–"
"""Stands for an unknown or missing value."""
SIZE_IN_WORDS = "bytes, such as 16GiB or 1048576"
RATE_IN_WORDS = "a speed above 0, such as 100Mbit/s or 12.5MB/s"
BRIEF_IN_WORDS = "a time, such as 2ms or 0.5s"
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?([KMGT]i?B|B)?")
_RATE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?([kKMGT]?)bit/s")
_BRIEF = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?(us|µs|ms|s)")
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def number(value: float | None, digits: int = 4) -> str:
    """A metric with so many decimals, or a dash."""
    return DASH if value is None else f"{value:.{digits}f}"


def counted(count: float, noun: str) -> str:
    """`1 client`, `1,000 clients`."""
    return f"{count:,.0f} {noun}{'' if count == 1 else 's'}"


def ordinal(position: int) -> str:
    """`1st`, `2nd`, `11th`."""
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(position % 10, "th")
    return f"{position}{'th' if position % 100 in (11, 12, 13) else suffix}"


def in_bytes(count: float) -> str:
    """`999 B`, `12.3 MB`: units of a thousand, three digits."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" or count >= 999.5 else f"{count:.3g} {unit}"


def bytes_of(text: str) -> int | None:
    """The whole bytes in a text such as `1.5 GiB`; None if it is not a size."""
    found = _SIZE.fullmatch(text.strip())
    return None if found is None else int(float(found[1]) * _UNITS[found[2] or "B"])


def rate_of(text: str) -> float | None:
    """The bytes per second in a text such as `100 Mbit/s` or `12.5MB/s`; None if it is no speed."""
    stripped = text.strip()
    if found := _RATE.fullmatch(stripped):
        rate = float(found[1]) * _UNITS[f"{found[2].upper()}B"] / 8
    else:
        size = bytes_of(stripped.removesuffix("/s")) if stripped.endswith("B/s") else None
        rate = float(size or 0)
    return rate or None


def in_rate(bytes_per_second: float) -> str:
    """`12.5 MB/s`."""
    return f"{in_bytes(bytes_per_second)}/s"


def seconds_of(text: str) -> float | None:
    """The seconds in a text such as `2ms` or `0.5 s`; None if it is no time."""
    found = _BRIEF.fullmatch(text.strip())
    return None if found is None else float(found[1]) * _SECONDS[found[2]]


def brief(seconds: float) -> str:
    """`340 µs`, `12.5 ms`, `4.21 s`, `3 min 5 s`: three digits below a minute."""
    if seconds >= 59.95:
        return duration(seconds)
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}"
    return "0 s" if seconds < 5e-10 else f"{seconds / 1e-6:.1g} µs"


def duration(seconds: float, units: int = 2) -> str:
    """`4.2 s`, `42 s`, `3 min 5 s`, `2 d 7 h`: at most `units` units; tenths below ten seconds."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    scales = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
    for size, unit, smaller_size, smaller in scales:
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest and units > 1 else "")
    return f"{whole} s"


def ago(then: float, now: float, units: int = 2) -> str:
    """The time since `then`, in whole seconds."""
    return f"{duration(round(now - then), units)} ago"


def listed(names: Sequence[str], most: int = 5, word: str = "and") -> str:
    """`a, b and c`; of more than `most` names the first `most`, and the number of others."""
    if len(names) > most:
        names = [*names[:most], f"{len(names) - most:,} more"]
    return f" {word} ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
