"""The group `fedpilot runs` and its commands."""

from __future__ import annotations

import click

from fedpilot.fabric.terminal.commands import CommandGroup

from .control import attach, logs, resume, stop
from .files import fetch, remove
from .listing import list_, show
from .verification import verify_


@click.group(
    cls=CommandGroup,
    commands=[list_, show, attach, logs, stop, resume, remove, fetch, verify_],
)
def runs() -> None:
    """List, show and verify runs: those of a folder here, or those of a mediator.

    They are a mediator's with --mediator or --profile, with FEDPILOT_PROFILE set, or once there is
    a default profile (`fedpilot profile use`); --folder always means a folder here. `attach`,
    `logs`, `stop`, `resume` and `fetch` are about a mediator's runs.

    \b
    Examples:
      fedpilot runs list
      fedpilot runs list --folder elsewhere/runs
      fedpilot runs attach digits-20260102-030405-a1b2c3d4 --profile hospitals
    """
