"""Shows a state with its mark and colour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from rich.text import Text

Looks: TypeAlias = Mapping[str, tuple[str, str]]
"""The mark of each state, which may be empty, and its colour."""


def marked(looks: Looks, state: str, more: str = "") -> Text:
    """A state with its mark and colour; an unknown (newer) one gets a question mark."""
    unknown = ("?" if any(mark for mark, _ in looks.values()) else "", "")
    mark, colour = looks.get(state, unknown)
    return Text(f"{mark} {state}{more}".lstrip(), colour)
