"""The commands list and show: the runs, and the state of one."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from fedpilot.common.host.exit_codes import BAD_INPUT
from fedpilot.common.terminal.commands import exit_codes, fail
from fedpilot.common.terminal.console import display, print_json
from fedpilot.common.text.amounts import duration
from fedpilot.mediator.cli.access import JSON, Access, ask, with_mediator

from .places import FOLDER, elsewhere, folder_here, has_runs_here, pointing_here


@click.command("list")
@click.option(
    "--last",
    "most",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    metavar="N",
    help="List only the newest N runs.",
)
@click.option("--all", "everything", is_flag=True, help="List all runs.")
@FOLDER
@JSON
@with_mediator
def list_(most: int, everything: bool, folder: Path | None, access: Access, as_json: bool) -> None:
    """List the newest runs with status, rounds and last accuracy.

    The newest run comes last. The number of older runs goes to stderr; with --json it is `more`.
    Below the runs of a mediator is the line of those that wait; with --json it is their `queue`.

    \b
    Examples:
      fedpilot runs list
      fedpilot runs list --all --folder elsewhere/runs
      fedpilot runs list --profile hospitals --json | jq -r '.runs[].run_id'
    """
    most = sys.maxsize if everything else most
    with exit_codes():
        here = folder_here(access, folder)
        if here is not None:
            _list_here(here, most, as_json)
            return
        found, more = ask(access, lambda client: client.newest_runs(most))
        if as_json:
            print_json({"runs": found, "more": more})
            return
        from fedpilot.mediator.cli.tables import run_table

        display(run_table(found, time.time()))
        _tell_more(more)
        if not access.on_purpose and has_runs_here():
            click.echo(elsewhere(access), err=True)


def _tell_more(more: int) -> None:
    if more:
        click.echo(f"and {more:,} older; --all lists them", err=True)


def _list_here(folder: Path, most: int, as_json: bool) -> None:
    from ...federation.run_folder.folder import list_runs

    names = list_runs(folder)
    rows, more = [_brief(folder / run_id) for run_id in names[-most:]], max(0, len(names) - most)
    if as_json:
        print_json({"runs": rows, "more": more})
        return
    if not rows:
        click.echo(f"no runs in {folder}/; `fedpilot run CONFIG` starts one")
        return
    from fedpilot.mediator.cli.tables import run_table

    display(run_table(rows, time.time()))
    _tell_more(more)


@click.command()
@click.argument("run_id", metavar="RUN")
@FOLDER
@JSON
@with_mediator
def show(run_id: str, folder: Path | None, access: Access, as_json: bool) -> None:
    """Show RUN: status, last metrics, each site's part, and files.

    \b
    Examples:
      fedpilot runs show digits-20260102-030405-a1b2c3d4
      fedpilot runs show base --profile hospitals --json | jq .status
    """
    with exit_codes():
        here = folder_here(access, folder)
        if here is not None:
            _show_here(run_id, here, as_json)
            return
        with pointing_here(access):
            found = ask(access, lambda client: client.show_run(run_id))
        if as_json:
            print_json(found)
            return
        from fedpilot.mediator.cli.tables import run_details
        from fedpilot.mediator.client.client import ENDED

        folder_there = found.get("folder")
        beside = {"folder": f"{folder_there}, at the mediator"} if folder_there else {}
        display(run_details(found, time.time(), beside))
        status = found.get("status")
        step = "attach" if status not in ENDED else "fetch" if status == "finished" else "resume"
        more = ("--to", run_id) if step == "fetch" else ()
        click.echo(f"{step}: {access.step('runs', step, run_id, *more)}")


def _show_here(run_id: str, folder: Path, as_json: bool) -> None:
    path = folder / run_id
    if not (path / "config.yaml").is_file():
        fail(f"no run {run_id!r} in {folder}; see `fedpilot runs list`", BAD_INPUT)
    from fedpilot.mediator.cli.tables import run_details

    from ...federation.coordinator.site_limits import read_refusals
    from ...federation.report.wording import resume_command
    from ...federation.run_folder.folder import RunFolder
    from ...federation.runs.continuing import parent_of

    found = RunFolder(path)
    brief, manifest, rows = _brief(path), found.manifest(), found.rows()
    sites = rows[-1].get("sites", {}) if rows else {}
    refused = [each.to_json() for each in read_refusals(path / "journal")]
    document = {**brief, "sites": sites, "refused": refused, "traceback": found.failure()}
    if as_json:
        print_json({**document, "manifest": manifest})
        return
    beside = {"from": parent_of(manifest)} if parent_of(manifest) else {}
    beside |= {name: str(manifest[name]) for name in ("started", "ended") if name in manifest}
    if "seconds" in manifest:
        beside["took"] = duration(manifest["seconds"])
    if "identity" in manifest:
        beside["identity"] = str(manifest["identity"])
    files = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    beside["files"] = ", ".join(files)
    display(run_details(document, time.time(), beside))
    if brief["status"] != "finished":
        click.echo(f"resume: {resume_command(str(path))}")


def _brief(path: Path) -> dict[str, Any]:
    """A run's entry in a list; one that died without an end is called interrupted."""
    from ...federation.run_folder.folder import RunFolder, is_locked

    found = RunFolder(path)
    manifest, rows = found.manifest(), found.rows()
    last = rows[-1] if rows else {}
    status = manifest.get("status", "interrupted")
    if status == "running" and not is_locked(path):
        status = "interrupted"
    return {
        "run_id": path.name,
        "status": status,
        "failure": manifest.get("failure", ""),
        "rounds": last.get("round", 0),
        "accuracy": last.get("accuracy"),
        "loss": last.get("loss"),
        "digest": last.get("model", ""),
        "folder": str(path),
    }
