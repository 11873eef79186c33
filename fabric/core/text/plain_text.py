"""Text from elsewhere, as it may be shown: no character of it is one that a terminal would obey."""

from __future__ import annotations


def plain_lines(text: str) -> str:
    """The text with its lines and tabs; other unprintable characters become question marks."""
    return "".join(each if each.isprintable() or each in "\n\t" else "?" for each in text)


def plain_line(text: str) -> str:
    """The text on one line."""
    return "".join(each if each.isprintable() else "?" for each in text)
