"""Makes untrusted text safe to print: it removes every character that controls a terminal."""

from __future__ import annotations


def plain_lines(text: str) -> str:
    """The text with its lines and tabs; other unprintable characters become question marks."""
    return "".join(each if each.isprintable() or each in "\n\t" else "?" for each in text)


def plain_line(text: object) -> str:
    """The text on one line; line breaks and tabs become question marks too."""
    return "".join(each if each.isprintable() else "?" for each in str(text))


def one_line(text: str, most: int | None = None) -> str:
    """The text on one line, at most `most` characters; blanks replace line breaks."""
    return plain_line(" ".join(text.split())[:most])
