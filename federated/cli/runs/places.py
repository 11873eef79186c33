"""Where the runs of a command are: in a folder here, or at a mediator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from fedpilot.mediator.cli.access import Access

DEFAULT_FOLDER = Path("runs")


FOLDER = click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder of run folders on this machine. Default: `runs`, unless a mediator is named.",
)


def folder_here(access: Access, folder: Path | None) -> Path | None:
    """The folder here that a command is about; None if it is about a mediator's runs."""
    if folder is None:
        return DEFAULT_FOLDER if access.chosen_or_none() is None else None
    if access.mediator or access.profile:
        raise click.UsageError("--folder is on this machine; leave out --mediator and --profile.")
    return folder


@contextmanager
def pointing_here(access: Access) -> Iterator[None]:
    """Add where runs here are to an error, if the default mediator has no such run."""
    from fedpilot.mediator.errors import NoSuchRun

    try:
        yield
    except NoSuchRun as error:
        if access.on_purpose or not has_runs_here():
            raise
        raise NoSuchRun(f"{error}; {elsewhere(access)}") from error


def has_runs_here() -> bool:
    """Whether the default folder has any runs."""
    from ...federation.run_folder.folder import list_runs

    return bool(list_runs(DEFAULT_FOLDER))


def elsewhere(access: Access) -> str:
    """The option that directs a command to runs here."""
    return (
        f"this is from the mediator {access.chosen().address} of the default profile; for the "
        f"runs in {DEFAULT_FOLDER}/ here add --folder {DEFAULT_FOLDER}"
    )
