"""How a command is listed, interrupted and ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from ..host.exit_codes import FAILED, INTERRUPTED, exit_code_of
from ..host.interruptions import Interruptions
from ..text.plain_text import plain_lines

LONGEST_SENTENCE = 1_000


class CommandGroup(click.Group):
    """A group whose help describes each of its commands in a whole sentence."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands; click itself cuts each text to one line."""
        rows = [
            (name, command.get_short_help_str(LONGEST_SENTENCE))
            for name, command in sorted(self.commands.items())
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


UNDISTURBED_S = 5.0
"""How long further interruptions are ignored, so that cleanup can end: leaving Ray takes 1 s."""


def interruptions() -> Interruptions:
    """Let a signal interrupt once, and again only after `UNDISTURBED_S`."""
    return Interruptions(again_after_s=UNDISTURBED_S)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn errors into a message on stderr and the documented exit code."""
    try:
        yield
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        fail(f"{name}{error.strerror or error}", FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        code = exit_code_of(error)
        if code is None:
            raise
        fail(str(error), code)


def fail(message: str, code: int) -> NoReturn:
    click.echo(f"fedpilot: {plain_lines(message)}", err=True)
    sys.exit(code)
