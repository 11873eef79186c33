"""Writes to the screen: text and documents to stdout, progress to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PLAIN_WIDTH = 120
"""The width in columns without a terminal."""


@contextmanager
def spinner(text: str) -> Iterator[Callable[[str], None]]:
    """On a terminal, show what the command waits for; yields a function that changes the text."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(text)) as status:
        yield lambda text: status.update(Text(text))


def stdout_console() -> Console:
    from rich.console import Console

    plain = None if sys.stdout.isatty() else PLAIN_WIDTH
    return Console(file=sys.stdout, width=plain, highlight=False, markup=False, emoji=False)


def display(what: RenderableType) -> None:
    stdout_console().print(what)


def print_json(document: Mapping[str, Any]) -> None:
    click.echo(json.dumps(document, indent=2))
