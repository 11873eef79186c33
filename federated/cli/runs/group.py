"""The group `fedpilot runs` and its commands."""

from __future__ import annotations

import click

from fedpilot.common.terminal.commands import CommandGroup

from .comparing import compare, plot
from .control import attach, logs, resume, stop
from .files import fetch, remove
from .listing import list_, show
from .verification import verify_


@click.group(
    cls=CommandGroup,
    commands=[list_, show, compare, plot, attach, logs, stop, resume, remove, fetch, verify_],
)
def runs() -> None:
    """List, show, compare and verify runs in a folder here or at a mediator.

    The commands use a mediator with --mediator, --profile or FEDPILOT_PROFILE, and if there is a
    default profile (`fedpilot profile use`). --folder always selects a folder on this machine.
    `attach`, `logs`, `stop`, `resume` and `fetch` need a mediator; `compare` and `plot` need a
    folder here.

    \b
    Examples:
      fedpilot runs list
      fedpilot runs list --folder elsewhere/runs
      fedpilot runs attach digits-20260102-030405-a1b2c3d4 --profile hospitals
    """
