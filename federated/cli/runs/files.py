"""The commands fetch and remove: copy a run's files here, and delete those of ended runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from fedpilot.common.host.exit_codes import INTERRUPTED
from fedpilot.common.terminal.commands import exit_codes, fail, interruptions
from fedpilot.common.terminal.console import print_json, spinner
from fedpilot.mediator.cli.access import JSON, Access, ask, with_mediator

from .places import FOLDER, folder_here, pointing_here


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--to",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder for the files, new or empty.",
)
@JSON
@with_mediator
def fetch(run_id: str, to: Path, access: Access, as_json: bool) -> None:
    """Copy the models, metrics and other files of RUN from the mediator.

    \b
    Examples:
      fedpilot runs fetch base --to runs/base --profile hospitals
      fedpilot runs fetch base --to base --json | jq -r '.files[]'

    \b
    Exit codes: 0 copied; 1 the mediator sent invalid data; 2 no such run, or DIR is not empty;
    3 not permitted; 4 mediator unreachable.
    """
    with exit_codes():
        try:
            with interruptions():
                names = fetch_files(access, run_id, to)
        except KeyboardInterrupt:
            fail(f"interrupted; {to} has some of the files, each complete", INTERRUPTED)
        if as_json:
            print_json({"run_id": run_id, "folder": str(to), "files": names})
            return
        click.echo(f"{len(names)} files of {run_id} are in {to}")


def fetch_files(access: Access, run_id: str, to: Path) -> list[str]:
    """Copy a run's files into a folder here, and return their names."""
    from fedpilot.mediator.client.run_files import fetch_run

    with access.open() as client, spinner(f"fetching {run_id}") as say:
        places = fetch_run(client, run_id, to, lambda place, size: say(f"fetching {place}"))
    return [str(place) for place in places]


@click.command()
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True)
@FOLDER
@JSON
@with_mediator
def remove(run_ids: tuple[str, ...], folder: Path | None, access: Access, as_json: bool) -> None:
    """Remove ended runs and their folders.

    You can then neither show nor resume them. At a mediator, you may remove your own runs, and an
    admin any run. A run that started with `--from` has its own copies and stays intact. If the
    command refuses one of several runs, it has already removed those before it.

    \b
    Examples:
      fedpilot runs remove digits-20260102-030405-a1b2c3d4
      fedpilot runs remove first second --profile hospitals
      fedpilot runs list --json | jq -r '.runs[].run_id' | xargs fedpilot runs remove
    """
    with exit_codes():
        here = folder_here(access, folder)
        if here is not None:
            from ...federation.run_folder.folder import remove_run

            _remove(run_ids, partial(remove_run, here), as_json)
            return
        with pointing_here(access):
            ask(access, lambda client: _remove(run_ids, client.remove_run, as_json))


def _remove(run_ids: tuple[str, ...], act: Callable[[str], object], as_json: bool) -> None:
    removed: list[str] = []
    try:
        for run_id in dict.fromkeys(run_ids):
            act(run_id)
            removed.append(run_id)
            if not as_json:
                click.echo(f"removed {run_id}")
    finally:
        if as_json:
            print_json({"removed": removed})
