"""What writes to the screen: text and documents on stdout, what is waited for on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PLAIN_WIDTH = 120
"""Columns where there is no terminal to ask."""


class Spinner:
    """Says on a terminal what is waited for; nothing elsewhere."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._status: AbstractContextManager[Any] = nullcontext()

    def say(self, text: str) -> None:
        """Something else is waited for now."""
        from rich.text import Text

        if not isinstance(self._status, nullcontext):
            self._status.update(Text(text))  # type: ignore[attr-defined]

    def __enter__(self) -> Spinner:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.text import Text

            self._status = Console(stderr=True).status(Text(self._text))
        self._status.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._status.__exit__(*error)


def stdout_console() -> Console:
    from rich.console import Console

    plain = None if sys.stdout.isatty() else PLAIN_WIDTH
    return Console(file=sys.stdout, width=plain, highlight=False, markup=False, emoji=False)


def display(what: RenderableType) -> None:
    stdout_console().print(what)


def print_json(document: Mapping[str, Any]) -> None:
    click.echo(json.dumps(document, indent=2))
