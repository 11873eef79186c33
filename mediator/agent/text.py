"""Text across the trust boundary: a mediator's for the site's log, errors without site paths."""

from __future__ import annotations

from fedpilot.common.text.plain_text import one_line

LONGEST = 500
"""Longest mediator's text that is shown, in characters."""


def mediator_said(text: str, otherwise: str = "it gave no reason") -> str:
    """A mediator's text as one line without control characters."""
    return one_line(text, LONGEST) or otherwise


def in_short(error: Exception) -> str:
    """Describe an error without the site's paths."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
