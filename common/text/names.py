"""Builds virtual clusters' names from several parts, and recognizes SHA-256 digests as names."""

from __future__ import annotations

import hashlib
import re

LONGEST = 63
"""The longest name, in characters; a name is also the value of a label."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FOREIGN = re.compile(r"[^a-zA-Z0-9_.-]")
_MARK = 6


def joined_name(*parts: str) -> str:
    """The parts, joined by dashes, as a name that Ray accepts.

    If it is too long, the longest parts lose their beginnings, and a hash of all parts is added.
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
    """Whether this is a lower-case SHA-256, which is safe as a file name."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None
