"""The commands about runs: run, check, init, runs, doctor. Thin: parse, call, print, exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from fedpilot.fabric.interruptions import Interruptions

from .errors import ConfigError, FederatedError, RunRefused

if TYPE_CHECKING:
    from .federation import Federation

FAILED, BAD_INPUT, REFUSED, UNREACHABLE, INTERRUPTED = 1, 2, 3, 4, 130

SET = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Override a key, such as `training.learning_rate=0.05`. May be given several times.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


@contextmanager
def _exit_codes() -> Iterator[None]:
    """Turn what went wrong into a message on stderr and the exit code that docs promise."""
    from fedpilot.fabric import FabricError
    from fedpilot.mediator import MediatorError

    try:
        yield
    except (FederatedError, FabricError, MediatorError) as error:
        _fail(str(error), _code_of(error))
    except BrokenPipeError:
        sys.exit(FAILED)  # nobody reads any more
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        _fail(f"{name}{error.strerror or error}", FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _code_of(error: Exception) -> int:
    """The exit code of something that went wrong in one of the packages."""
    from fedpilot.fabric import (
        ClusterStartFailed,
        ClusterUnreachable,
        GangInfeasible,
        GangTimeout,
    )
    from fedpilot.mediator import ReservationRefused

    match error:
        case ConfigError() | RunRefused():
            return BAD_INPUT
        case GangInfeasible() | GangTimeout() | ReservationRefused():
            return REFUSED
        case ClusterUnreachable() | ClusterStartFailed():
            return UNREACHABLE
    return FAILED


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"fedpilot: {message}", err=True)
    sys.exit(code)


@click.command()
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--resume", metavar="RUN_ID", help="Continue this interrupted run.")
@click.option("--run-id", metavar="RUN_ID", help="Call the new run this, instead of name and time.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Where run folders are; by default `outputs.folder` of the config, or `runs`.",
)
@SET
@click.option("--json", "as_json", is_flag=True, help="Print one JSON event per line.")
def run(
    config: Path | None,
    resume: str | None,
    run_id: str | None,
    folder: Path | None,
    overrides: Sequence[str],
    as_json: bool,
) -> None:
    """Train the federation that CONFIG describes.

    Everything the run leaves goes to its run folder: the resolved config, a row of metrics per
    round, the last and the best model, curves.png. Ctrl-C ends the run cleanly; `--resume RUN_ID`
    (without CONFIG) continues it and ends in the same model, bit for bit.

    \b
    Examples:
      fedpilot run configs/quickstart.yaml
      fedpilot run my.yaml --set federation.rounds=100 --set resources.workers=4
      fedpilot run --resume quickstart-20260102-030405-a1b2c3d4
      fedpilot run my.yaml --json | jq 'select(.event == "round_finished") | .accuracy'
    """
    if (config is None) == (resume is None):
        raise click.UsageError("give either CONFIG, to begin a run, or --resume RUN_ID.")
    if resume is not None and (overrides or run_id):
        raise click.UsageError("a resumed run keeps its config: no --set, no --run-id.")
    from .report.progress import display_for

    display = display_for(sys.stdout, as_json=as_json)
    changes = [*overrides, *([f"outputs.folder={json.dumps(str(folder))}"] if folder else [])]
    with _exit_codes(), Interruptions() as interruptions, display:
        from .federation import Federation

        with redirect_stdout(sys.stderr):  # what the user's own modules print as they load
            if config is not None:
                federation = Federation(config, overrides=changes, observers=[display], ahead=True)
            else:
                federation = _reopened(folder or Path("runs"), resume or "", [display])
        try:
            if config is not None:
                federation.run(run_id=run_id)
            else:
                federation.resume(resume or "")
        finally:
            interruptions.shield()
            federation.close()


def _reopened(root: Path, run_id: str, observers: Sequence[Callable[..., None]]) -> Federation:
    """The federation of an earlier run, from the config in its folder."""
    from .config import load_config
    from .federation import Federation
    from .run_folder import RunFolder

    with RunFolder.open(root, run_id) as folder:
        saved = load_config(folder.path / "config.yaml")
        search = folder.manifest().get("search", [])
    here = saved.model_copy(
        update={"outputs": saved.outputs.model_copy(update={"folder": str(root)})}
    )
    return Federation(here, observers=observers, search=search)


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@SET
@JSON
def check(config: Path, overrides: Sequence[str], as_json: bool) -> None:
    """Validate CONFIG, load its data, build its model; print it as resolved. Starts nothing.

    \b
    Examples:
      fedpilot check my.yaml
      fedpilot check my.yaml --set data.dirichlet_beta=0.1 --json
    """
    with _exit_codes():
        from .config import to_yaml
        from .federation import Federation

        federation = Federation(config, overrides=overrides)
        found = federation.describe()
        facts = {
            "clients": found.number_of_clients,
            "clients_per_round": federation.cohort_size,
            "samples_per_client": [found.samples_min, found.samples_median, found.samples_max],
            "labels_per_client": round(found.labels_mean, 2),
            "parameters": federation.parameters,
            "bytes_of_updates": federation.bytes_of_updates,
            "identity": federation.identity,
            "code_digest": federation.code_digest,
            "data_digest": federation.data_digest,
        }
        if as_json:
            resolved = federation.config.model_dump(mode="json")
            click.echo(json.dumps({"config": resolved, **facts}, indent=2))
            return
        click.echo(to_yaml(federation.config), nl=False)
        click.echo(
            f"\n# {config} is right: {found.number_of_clients:,} clients of {found.samples_min} to "
            f"{found.samples_max} samples (median {found.samples_median:g}),\n# "
            f"{federation.cohort_size:,} per round; {federation.parameters:,} parameters; "
            f"identity {federation.identity[:16]}{_kept(federation)}"
        )


def _kept(federation: Federation) -> str:
    """What it costs that an algorithm needs every update of a round; nothing where a sum does."""
    from .update_costs import in_bytes

    if not (total := federation.bytes_of_updates):
        return ""
    return (
        f"\n# `{federation.config.federation.aggregation_strategy}` keeps every update of a round: "
        f"{federation.cohort_size:,} clients per round x "
        f"{in_bytes(total // federation.cohort_size)} = {in_bytes(total)} of memory,\n# "
        "up to three times while they are handed up"
    )


@click.command()
@click.argument("path", default="fedpilot.yaml", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def init(path: Path, force: bool) -> None:
    """Write a starter config with every key explained to PATH (default: fedpilot.yaml).

    It runs as it is: fifty clients share the bundled handwritten digits.
    """
    from .config import starter

    if path.exists() and not force:
        _fail(f"{path} exists already; choose another name, or --force to replace it", BAD_INPUT)
    try:
        path.write_text(starter())
    except OSError as error:
        _fail(f"{path} cannot be written: {error.strerror or error}", BAD_INPUT)
    click.echo(f"wrote {path}; next: fedpilot run {path}")


@click.command()
@click.option("--address", metavar="HOST:PORT", help="Also see whether this Ray can be reached.")
@JSON
def doctor(address: str | None, as_json: bool) -> None:
    """Look at this machine: versions, cores, memory, disk, ports, Ray's settings.

    Exits 1 if something would keep runs from working.
    """
    from .doctor import examine

    findings = examine(address)
    if as_json:
        rows = [
            {"name": f.name, "status": str(f.status), "found": f.found, "advice": f.advice}
            for f in findings
        ]
        click.echo(json.dumps({"findings": rows}, indent=2))
    else:
        marks = {"ok": "✓", "warn": "!", "fail": "✗"}
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            click.echo(f"{marks[str(finding.status)]} {finding.name:<{width}}  {finding.found}")
            if finding.advice:
                click.echo(f"  {'':<{width}}  → {finding.advice}")
    if any(str(finding.status) == "fail" for finding in findings):
        sys.exit(FAILED)


@click.group()
def runs() -> None:
    """List, show and verify the runs of a folder."""


FOLDER = click.option(
    "--folder", default="runs", type=click.Path(path_type=Path), help="Where run folders are."
)


@runs.command("list")
@FOLDER
@JSON
def list_(folder: Path, as_json: bool) -> None:
    """List the runs, oldest first, with their status, rounds and last accuracy."""
    from .run_folder import list_runs

    rows = [_brief(folder / run_id) for run_id in list_runs(folder)]
    if as_json:
        click.echo(json.dumps({"runs": rows}, indent=2))
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


@runs.command()
@click.argument("run_id")
@FOLDER
@JSON
def show(run_id: str, folder: Path, as_json: bool) -> None:
    """Show one run: its manifest and its last metrics."""
    path = folder / run_id
    if not (path / "config.yaml").is_file():
        _fail(f"no run {run_id!r} in {folder}; see `fedpilot runs list`", BAD_INPUT)
    brief, manifest = _brief(path), _read_manifest(path)
    from .report.wording import resume_command

    if as_json:
        click.echo(json.dumps({**brief, "manifest": manifest}, indent=2))
        return
    for name in ("run_id", "status", "failure", "rounds", "accuracy", "loss", "digest"):
        value = brief.get(name)
        if value not in (None, ""):
            click.echo(f"{name:<10} {value}")
    for name in ("started", "ended", "seconds", "identity"):
        if name in manifest:
            click.echo(f"{name:<10} {manifest[name]}")
    files = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    click.echo(f"{'files':<10} {', '.join(files)}")
    if brief["status"] != "finished":
        click.echo(f"{'resume':<10} {resume_command(str(path))}")


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
def verify_(
    run_id: str,
    other: str | None,
    folder: Path,
    how: str,
    clients: int,
    overrides: Sequence[str],
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

    \b
    Examples:
      fedpilot runs verify base
      fedpilot runs verify base --replay all
      fedpilot runs verify base elsewhere/runs/base --json

    \b
    Exit codes: 0 verified, or the two agree; 1 they differ; 3 the run cannot be
    trained again here, having other code or data than was run.
    """
    with _exit_codes(), Interruptions() as interruptions:
        with redirect_stdout(sys.stderr):
            from .federation import Federation
            from .verify import Replay, Telling, TextReport, Tools, document, verify

        out = sys.stdout
        text = None if as_json else TextReport(out, clients)
        with redirect_stdout(sys.stderr), Telling(sys.stderr) as telling:

            def say(part: Any) -> None:
                telling.pause()
                if text is not None:
                    text(part)

            outcome = verify(
                folder,
                [run_id] if other is None else [run_id, other],
                how=Replay(how),
                measured=clients,
                tools=Tools(
                    make=lambda config, search: Federation(config, search=search),
                    tell=telling,
                    hold=interruptions.held,
                ),
                say=say,
                overrides=overrides,
            )
        if outcome.differs:
            code = FAILED
        elif outcome.failure is not None:
            code = _code_of(outcome.failure)
        else:
            code = REFUSED if outcome.refused else 0
        if as_json:
            click.echo(json.dumps(document(outcome, clients, code), indent=2))
    sys.exit(code)


def _brief(path: Path) -> dict[str, Any]:
    """What lists say of a run; one that died without a word is called interrupted."""
    from .run_folder import RunFolder, is_locked

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
    from .run_folder import RunFolder

    return RunFolder(path).manifest()
