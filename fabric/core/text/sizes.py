"""How many bytes a text such as `100MB` or `16GiB` says, in every file that people write.

Units of a thousand are KB, MB, GB and TB, those of 1024 are KiB, MiB, GiB and TiB. A part of a byte
is left out.
"""

from __future__ import annotations

import re

_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?([KMGT]i?B|B)?")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
SIZE_IN_WORDS = "bytes, such as 16GiB or 1048576"


def bytes_of(text: str) -> int | None:
    """The bytes that a text says; None if it says none."""
    found = _SIZE.fullmatch(text.strip())
    return None if found is None else int(float(found[1]) * _UNITS[found[2] or "B"])
