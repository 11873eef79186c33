"""Names for virtual clusters that are made of several parts; SHA-256 digests as names."""

from __future__ import annotations

import hashlib
import re

LONGEST = 63
"""Characters of a name, which is the value of a label too."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FOREIGN = re.compile(r"[^a-zA-Z0-9_.-]")
_MARK = 6


def joined_name(*parts: str) -> str:
    """The parts, joined by dashes, as a name that Ray takes.

    If it is too long, the longest parts lose their beginnings, and a hash at the end keeps the
    names of different parts apart.
    """
    kept = [_FOREIGN.sub("-", part).strip("_.-") for part in parts]
    kept = [part for part in kept if part]
    whole = "-".join(kept)
    if whole and len(whole) <= LONGEST:
        return whole
    mark = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_MARK]
    while len("-".join([*kept, mark])) > LONGEST:
        longest = max(range(len(kept)), key=lambda place: len(kept[place]))
        kept[longest] = kept[longest][1:].lstrip("_.-")
        kept = [part for part in kept if part]
    return "-".join([*kept, mark])


def is_digest(value: object) -> bool:
    """Whether this is a SHA-256 in lower case; such a text is harmless as a file's name."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None
