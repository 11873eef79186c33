"""The commands about runs: `fedpilot runs`, of a folder here or of a mediator. Thin, like all."""

from __future__ import annotations

import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpilot.closed_pipes import ends_with_reader
from fedpilot.fabric.cli.access import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    REFUSED,
    Commands,
    Spinner,
    display,
    exit_codes,
    fail,
    interruptions,
    print_json,
)
from fedpilot.fabric.core.text.plain_text import plain_lines
from fedpilot.fabric.host.exit_codes import exit_code_of
from fedpilot.fabric.host.interruptions import Interruptions
from fedpilot.mediator.cli.access import JSON, Access, ask, with_mediator

if TYPE_CHECKING:
    from ..federation.verify import Outcome

DEFAULT_FOLDER = Path("runs")
FOLDER = click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where run folders are, here; by default `runs`, unless a mediator is named.",
)


@click.group(cls=Commands)
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


def _folder(access: Access, folder: Path | None) -> Path | None:
    """The folder here that a command is about; None where it is about a mediator's runs."""
    if folder is None:
        return DEFAULT_FOLDER if access.profile_or_none() is None else None
    if access.asked.mediator or access.asked.profile:
        raise click.UsageError("--folder is a place here, --mediator and --profile are elsewhere.")
    return folder


@contextmanager
def _pointing_here(access: Access) -> Iterator[None]:
    """Have a mediator that nobody named and that knows no such run say where runs here are."""
    from fedpilot.mediator.errors import NoSuchRun

    try:
        yield
    except NoSuchRun as error:
        if access.on_purpose or not _has_runs_here():
            raise
        raise NoSuchRun(f"{error}; {_elsewhere(access)}") from error


def _has_runs_here() -> bool:
    from ..federation.run_folder.folder import list_runs

    return bool(list_runs(DEFAULT_FOLDER))


def _elsewhere(access: Access) -> str:
    return (
        f"this is about the mediator {access.profile().address} of the default profile; for the "
        f"runs in {DEFAULT_FOLDER}/ here add --folder {DEFAULT_FOLDER}"
    )


@runs.command("list")
@click.option(
    "--last",
    "most",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    metavar="N",
    help="Only the newest N.",
)
@click.option("--all", "everything", is_flag=True, help="All runs, however many there are.")
@FOLDER
@JSON
@with_mediator
def list_(most: int, everything: bool, folder: Path | None, access: Access, as_json: bool) -> None:
    """List the newest runs, oldest first, with their status, rounds and last accuracy.

    How many there are beyond is said on stderr; with --json it is `more`.

    \b
    Examples:
      fedpilot runs list
      fedpilot runs list --all --folder elsewhere/runs
      fedpilot runs list --profile hospitals --json | jq -r '.runs[].run_id'
    """
    most = sys.maxsize if everything else most
    with exit_codes():
        here = _folder(access, folder)
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
        if not access.on_purpose and _has_runs_here():
            click.echo(_elsewhere(access), err=True)


def _tell_more(more: int) -> None:
    if more:
        click.echo(f"and {more:,} older; --all lists them", err=True)


def _list_here(folder: Path, most: int, as_json: bool) -> None:
    from ..federation.run_folder.folder import list_runs

    names = list_runs(folder)
    rows, more = [_brief(folder / run_id) for run_id in names[-most:]], max(0, len(names) - most)
    if as_json:
        print_json({"runs": rows, "more": more})
        return
    if not rows:
        click.echo(f"no runs in {folder}/; `fedpilot run CONFIG` makes one")
        return
    width = max(len(row["run_id"]) for row in rows)
    click.echo(f"{'run':<{width}}  {'status':<11}  rounds  accuracy  model")
    for row in rows:
        accuracy = "–" if row["accuracy"] is None else f"{row['accuracy']:.4f}"
        click.echo(
            f"{row['run_id']:<{width}}  {row['status']:<11}  {row['rounds']:>6}  {accuracy:>8}  "
            f"{row['digest'][:12]}"
        )
    _tell_more(more)


@runs.command()
@click.argument("run_id", metavar="RUN")
@FOLDER
@JSON
@with_mediator
def show(run_id: str, folder: Path | None, access: Access, as_json: bool) -> None:
    """Show RUN: its status, its last metrics, what each site added, and where its files are.

    \b
    Examples:
      fedpilot runs show digits-20260102-030405-a1b2c3d4
      fedpilot runs show base --profile hospitals --json | jq .status
    """
    with exit_codes():
        here = _folder(access, folder)
        if here is not None:
            _show_here(run_id, here, as_json)
            return
        with _pointing_here(access):
            found = ask(access, lambda client: client.show_run(run_id))
        if as_json:
            print_json(found)
            return
        from fedpilot.mediator.cli.tables import run_details
        from fedpilot.mediator.client.client import ENDED

        display(run_details(found, time.time()))
        status = found.get("status")
        step = "attach" if status not in ENDED else "fetch" if status == "finished" else "resume"
        more = ("--to", run_id) if step == "fetch" else ()
        click.echo(f"{step}: {access.step('runs', step, run_id, *more)}")


def _show_here(run_id: str, folder: Path, as_json: bool) -> None:
    path = folder / run_id
    if not (path / "config.yaml").is_file():
        fail(f"no run {run_id!r} in {folder}; see `fedpilot runs list`", BAD_INPUT)
    from ..federation.coordinator.site_limits import read_refusals
    from ..federation.report.wording import refusal_lines, resume_command, site_lines
    from ..federation.run_folder.folder import FAILURE, RunFolder
    from ..federation.runs.continuing import parent_of

    brief, manifest = _brief(path), _read_manifest(path)
    rows = RunFolder(path).rows()
    sites = rows[-1].get("sites", {}) if rows else {}
    refused = [each.to_json() for each in read_refusals(path / "journal")]
    trace = RunFolder(path).failure()
    if as_json:
        more = {"sites": sites, "refused": refused, "traceback": trace}
        print_json({**brief, **more, "manifest": manifest})
        return
    for name in ("run_id", "status", "failure", "rounds", "accuracy", "loss", "digest"):
        value = brief.get(name)
        if value not in (None, ""):
            click.echo(f"{name:<10} {value}")
    if said := parent_of(manifest):
        click.echo(f"{'from':<10} {said}")
    for name in ("started", "ended", "seconds", "identity"):
        if name in manifest:
            click.echo(f"{name:<10} {manifest[name]}")
    for name, lines in (("sites", site_lines(sites)), ("refused", refusal_lines(refused))):
        for number, line in enumerate(lines):
            click.echo(f"{'' if number else name:<10} {line}")
    files = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    click.echo(f"{'files':<10} {', '.join(files)}")
    if trace:
        click.echo(f"traceback, of {path / FAILURE}:")
        click.echo(textwrap.indent(trace.rstrip("\n"), "  "))
    if brief["status"] != "finished":
        click.echo(f"{'resume':<10} {resume_command(str(path))}")


# -- runs of a mediator ---------------------------------------------------------------------------


@runs.command()
@click.argument("run_id", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON event per line.")
@with_mediator
def attach(run_id: str, access: Access, as_json: bool) -> None:
    """Follow RUN at the mediator from its first event on, until it ends.

    A broken connection is made again; no event is lost or told twice. Ctrl-C detaches: the run
    goes on.

    \b
    Examples:
      fedpilot runs attach base --profile hospitals
      fedpilot runs attach base --json | jq 'select(.event == "round_finished") | .accuracy'

    \b
    Exit codes: as those of `fedpilot run`; 4 the mediator cannot be reached, the run may go on;
    130 detached, or somebody stopped the run.
    """
    with exit_codes(), ends_with_reader():
        from ..federation.remote.remote_run import follow

        sys.exit(follow(access, run_id, as_json=as_json))


@runs.command()
@click.argument("run_id", metavar="RUN")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run ends.")
@JSON
@with_mediator
def logs(run_id: str, follow: bool, access: Access, as_json: bool) -> None:
    """Print what RUN's coordinator at the mediator wrote to its log.

    With --json, one document with `run_id` and `log`; with --follow too, once the run has ended.

    \b
    Examples:
      fedpilot runs logs base --profile hospitals
      fedpilot runs logs base --follow | grep -i warning
    """
    with exit_codes(), ends_with_reader():
        try:
            with interruptions(), access.open() as client:
                parts = client.run_log(run_id, follow=follow)
                if as_json:
                    print_json({"run_id": run_id, "log": "".join(parts)})
                    return
                for text in parts:
                    click.echo(plain_lines(text), nl=False)
        except KeyboardInterrupt:
            fail(f"interrupted; nothing becomes of run {run_id} by that", INTERRUPTED)


@runs.command()
@click.argument("run_id", metavar="RUN")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until it has ended.")
@JSON
@with_mediator
def stop(run_id: str, wait: bool, access: Access, as_json: bool) -> None:
    """Have RUN at the mediator end, with its state kept: `runs resume` goes on with it.

    It can be resumed when this command returns. With `--no-wait` it may be `stopping` then. It
    gives back what it holds at the sites. A run that is local is stopped by Ctrl-C.

    \b
    Examples:
      fedpilot runs stop base --profile hospitals
      fedpilot runs stop base --json | jq .status
    """
    with exit_codes():
        found = ask(access, lambda client: client.stop_run(run_id, wait=wait))
        if as_json:
            print_json(found)
            return
        click.echo(f"{run_id} is {found.get('status')}")
        click.echo(f"to go on with it: {access.step('runs', 'resume', run_id)}")


@runs.command()
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True)
@FOLDER
@JSON
@with_mediator
def remove(run_ids: tuple[str, ...], folder: Path | None, access: Access, as_json: bool) -> None:
    """Remove runs that have ended, with their folders: nothing of them can be resumed or shown.

    At a mediator these are runs of your own; an admin removes anybody's. A run that was begun with
    `--from` one of them keeps what it needs of it. Those before one that is refused are removed.

    \b
    Examples:
      fedpilot runs remove digits-20260102-030405-a1b2c3d4
      fedpilot runs remove first second --profile hospitals
      fedpilot runs list --json | jq -r '.runs[].run_id' | xargs fedpilot runs remove
    """
    with exit_codes():
        here = _folder(access, folder)
        if here is not None:
            from ..federation.run_folder.folder import remove_run

            act = partial(remove_run, here)
            _remove(run_ids, act, as_json)
            return
        with _pointing_here(access):
            ask(access, lambda client: _remove(run_ids, client.remove_run, as_json))


def _remove(run_ids: tuple[str, ...], act: Callable[[str], object], as_json: bool) -> None:
    """Remove one after the other, and say which."""
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


@runs.command()
@click.argument("run_id", metavar="RUN")
@click.option("--detach", "-d", is_flag=True, help="Do not follow it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON event per line.")
@with_mediator
def resume(run_id: str, detach: bool, access: Access, as_json: bool) -> None:
    """Go on with RUN at the mediator, which was stopped or interrupted, and follow it.

    It ends in the same model, bit for bit. A run that is local: `fedpilot run --resume RUN`.

    \b
    Examples:
      fedpilot runs resume base --profile hospitals
      fedpilot runs resume base --detach --json | jq .status
    """
    with exit_codes():
        if detach:
            found = ask(access, lambda client: client.resume_run(run_id))
            if as_json:
                print_json(found)
            else:
                click.echo(f"{run_id} is {found.get('status')}")
            return
        from ..federation.remote.remote_run import resume as resume_and_follow

        sys.exit(resume_and_follow(access, run_id, as_json=as_json))


@runs.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--to",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path),
    help="Where its files go: a folder that is new or empty.",
)
@JSON
@with_mediator
def fetch(run_id: str, to: Path, access: Access, as_json: bool) -> None:
    """Bring the files of RUN from the mediator: metrics, models, curves, config, manifest.

    \b
    Examples:
      fedpilot runs fetch base --to runs/base --profile hospitals
      fedpilot runs fetch base --to base --json | jq -r '.files[]'

    \b
    Exit codes: 0 all are there; 1 the mediator sent what it should not; 2 no such run, or DIR holds
    something; 4 no mediator there.
    """
    with exit_codes():
        try:
            with interruptions(), _fetched(access, run_id, to) as names:
                pass
        except KeyboardInterrupt:
            fail(f"interrupted; {to} holds some of the files, each of them whole", INTERRUPTED)
        if as_json:
            print_json({"run_id": run_id, "folder": str(to), "files": names})
            return
        click.echo(f"{len(names)} files of {run_id} are in {to}")


@contextmanager
def _fetched(access: Access, run_id: str, to: Path) -> Iterator[list[str]]:
    """The names of a run's files, once they are in a folder here."""
    from fedpilot.mediator.client.run_files import fetch_run

    with access.open() as client, Spinner(f"fetching {run_id}") as spinner:
        places = fetch_run(client, run_id, to, lambda place, size: spinner.say(f"fetching {place}"))
    yield [str(place) for place in places]


# -- verifying ------------------------------------------------------------------------------------


@runs.command("verify")
@click.argument("run_id", metavar="RUN")
@click.argument("other", metavar="[RUN2]", required=False)
@FOLDER
@click.option(
    "--replay",
    "how",
    type=click.Choice(["last", "all", "none"]),
    default="last",
    show_default=True,
    help="What is trained again: the rounds after the older checkpoint that is kept (of a run "
    "without one, all rounds if they took less than a minute), all rounds, or nothing. Two runs: "
    "as few rounds as it takes to find out, all that come before where they part, or nothing.",
)
@click.option(
    "--clients",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="List so many of the clients that differ; all are counted.",
)
@click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Train again elsewhere, as with `resources.workers=1`; keys that decide the bits stay.",
)
@JSON
@with_mediator
def verify_(
    run_id: str,
    other: str | None,
    folder: Path | None,
    how: str,
    clients: int,
    overrides: Sequence[str],
    access: Access,
    as_json: bool,
) -> None:
    """Check that RUN is what it says, or find out where RUN and RUN2 part.

    RUN is an id, or the path of a run folder. Nothing is written there, and a run that is being run
    is refused.

    One run: its rows, models and checkpoints must fit together, its config, code and data must be
    what was run, and rounds that are trained again must come out in the same bits.

    Two runs: says at which round they part, and which clients and tensors of that round differ. The
    model before that round comes from a checkpoint, or the rounds before it are trained again;
    then its clients are trained one by one under each config. Digests of clients that the runs
    recorded take the place of that.

    Runs of a mediator are fetched into a folder of their own first; to be trained again here, they
    need their code and their data here.

    \b
    Examples:
      fedpilot runs verify base
      fedpilot runs verify base --replay all
      fedpilot runs verify base elsewhere/runs/base --json

    \b
    Exit codes: 0 verified, or the two agree; 1 they differ; 3 the run cannot be
    trained again here, having other code or data than was run.
    """
    names = [run_id] if other is None else [run_id, other]
    with exit_codes(), Interruptions() as watched, tempfile.TemporaryDirectory() as fetched:
        here = _folder(access, folder)
        if here is None:
            here = Path(fetched)
            for name in dict.fromkeys(names):
                with _pointing_here(access), _fetched(access, name, here / name):
                    pass
        outcome = _verified(here, names, how, clients, overrides, watched, as_json)
        if outcome.differs:
            code = FAILED
        elif outcome.failure is not None:
            code = exit_code_of(outcome.failure) or FAILED
        else:
            code = REFUSED if outcome.refused else 0
        if as_json:
            from ..federation.verify import document

            print_json(document(outcome, clients, code))
    sys.exit(code)


def _verified(
    folder: Path,
    names: Sequence[str],
    how: str,
    clients: int,
    overrides: Sequence[str],
    watched: Interruptions,
    as_json: bool,
) -> Outcome:
    """Verify runs of a folder here, and say on the way what is found."""
    with redirect_stdout(sys.stderr):
        from ..federation.federation import Federation
        from ..federation.verify import Replay, Telling, TextReport, Tools, verify

    text = None if as_json else TextReport(sys.stdout, clients)
    with redirect_stdout(sys.stderr), Telling(sys.stderr) as telling:

        def say(part: Any) -> None:
            telling.pause()
            if text is not None:
                text(part)

        return verify(
            folder,
            names,
            how=Replay(how),
            measured=clients,
            tools=Tools(
                make=lambda config, search: Federation(config, search=search),
                tell=telling,
                hold=watched.held,
            ),
            say=say,
            overrides=overrides,
        )


def _brief(path: Path) -> dict[str, Any]:
    """What lists say of a run; one that died without a word is called interrupted."""
    from ..federation.run_folder.folder import RunFolder, is_locked

    manifest = _read_manifest(path)
    rows = RunFolder(path).rows()
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


def _read_manifest(path: Path) -> dict[str, Any]:
    from ..federation.run_folder.folder import RunFolder

    return RunFolder(path).manifest()
