"""The command run: starts a run, here or at a mediator, or continues one."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedpilot.common.host.interruptions import Interruptions
from fedpilot.common.terminal.commands import exit_codes
from fedpilot.fabric.core.scheduling.priority_classes import CLASSES, DEFAULT_CLASS
from fedpilot.mediator.cli.access import Access, with_mediator

from .options import EVENTS, SET

if TYPE_CHECKING:
    from ..federation.federation import Federation


@click.command()
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--resume", metavar="RUN_ID", help="Continue this interrupted or failed run.")
@click.option(
    "--from",
    "parent",
    metavar="RUN",
    help="Start a new run from the last checkpoint of this run, an id or a folder.",
)
@click.option("--run-id", metavar="RUN_ID", help="Id of the new run. Default: name and time.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Folder for run folders. Default: `outputs.folder` of the config, or `runs`.",
)
@SET
@click.option("--detach", "-d", is_flag=True, help="At a mediator: submit the run and exit.")
@click.option(
    "--share",
    is_flag=True,
    help="At a mediator: let all users read the results, not only you and admins.",
)
@click.option(
    "--priority-class",
    metavar="CLASS",
    help=f"At a mediator: who waits in line goes by it. There are {', '.join(CLASSES)}, the first "
    "one first, and those of the mediator's file of queues. Default: resources.priority_class of "
    f"the config, or {DEFAULT_CLASS}.",
)
@EVENTS
@with_mediator
def run(
    config: Path | None,
    resume: str | None,
    parent: str | None,
    run_id: str | None,
    folder: Path | None,
    overrides: Sequence[str],
    detach: bool,
    share: bool,
    priority_class: str | None,
    access: Access,
    as_json: bool,
) -> None:
    """Train the federation of CONFIG, here or at the sites of a mediator.

    The run folder gets the config with all values, a row of metrics per round, the last and the
    best model, and curves.png. Ctrl-C stops the run and keeps its state. `--resume RUN_ID`, without
    CONFIG, continues the run to the same model, bit for bit. With it, `--set` may change only keys
    that do not decide the result, such as `resources.workers` and those of `traffic`.

    For more rounds, give `--from RUN --set federation.rounds=N` without CONFIG. A new run continues
    from the last checkpoint of RUN, to N rounds in all. It ends in the same model as one run of N
    rounds, bit for bit. It copies all that it needs, so you may remove RUN.

    With --mediator, --profile or FEDPILOT_PROFILE, the command submits the run to that mediator and
    follows it. A default profile alone submits nothing. Ctrl-C then only detaches: the run goes on,
    and `fedpilot runs attach` follows it again. With --json, the event `run_detached` has that
    command. The run folder is at the mediator; `fedpilot runs fetch` copies it. While its sites are
    full, the run waits in line; `fedpilot runs list` shows its place.

    \b
    Examples:
      fedpilot run configs/quickstart.yaml
      fedpilot run my.yaml --set federation.rounds=100 --set resources.workers=4
      fedpilot run --resume quickstart-20260102-030405-a1b2c3d4
      fedpilot run --from quickstart-20260102-030405-a1b2c3d4 --set federation.rounds=100
      fedpilot run my.yaml --json | jq 'select(.event == "round_finished") | .accuracy'
      fedpilot run my.yaml --mediator fl.example.org:7461 --credentials ~/alice
      fedpilot run my.yaml --profile hospitals --detach

    \b
    Exit codes: 0 done; 1 failed; 2 wrong config or usage; 3 infeasible or refused; 4 cluster or
    mediator unreachable; 130 interrupted, or detached.
    """
    if [config, resume, parent].count(None) != 2:
        raise click.UsageError("give exactly one of CONFIG, --resume RUN_ID and --from RUN.")
    if parent is not None and (detach or (access.on_purpose and not folder)):
        raise click.UsageError(
            "--from needs a run folder here; leave out --mediator, --profile and --detach."
        )
    if resume is not None and run_id:
        raise click.UsageError("a resumed run keeps its id; leave out --run-id.")
    if resume is not None and share:
        raise click.UsageError("a resumed run keeps its readers; leave out --share.")
    if resume is not None and priority_class:
        raise click.UsageError("a resumed run keeps its class; leave out --priority-class.")
    if resume is not None and overrides and access.on_purpose and not folder:
        raise click.UsageError("a resumed run keeps its config at a mediator; leave out --set.")
    if access.on_purpose and not folder:
        with exit_codes():
            from ..federation.remote import remote_run

            if resume is not None:
                sys.exit(remote_run.resume(access, resume, as_json=as_json))
            assert config is not None
            sys.exit(
                remote_run.submit(
                    access,
                    config,
                    overrides,
                    run_id=run_id,
                    detach=detach,
                    shared=share,
                    priority_class=priority_class or "",
                    as_json=as_json,
                )
            )
    option = "--detach" if detach else "--share" if share else "--priority-class"
    if access.mediator or access.profile or detach or share or priority_class:
        raise click.UsageError(
            "--folder is on this machine; leave out --mediator and --profile."
            if folder
            else f"{option} needs a run at a mediator: give --mediator or --profile."
        )
    from ..federation.events import event
    from ..federation.report.progress import display_for
    from ..federation.step_watch import StepWatch

    display = display_for(sys.stdout, as_json=as_json)
    watch = StepWatch(lambda name, **fields: display(event(name, **fields)))
    changes = [*overrides, *([f"outputs.folder={json.dumps(str(folder))}"] if folder else [])]
    with exit_codes(), Interruptions() as interruptions, display:
        if config is not None and run_id is not None:
            _check_free(config, changes, run_id)
        with watch.step("loading"):
            from ..federation.federation import Federation

        with redirect_stdout(sys.stderr):  # output of the user's own modules as they load
            if config is not None:
                federation = Federation(config, overrides=changes, observers=[display], ahead=True)
            else:
                root = folder or Path("runs")
                federation = _as_before(root, resume, parent, [display], overrides)
        try:
            if config is not None or parent is not None:
                federation.run(run_id=run_id, parent=parent)
            else:
                federation.resume(resume or "")
        finally:
            interruptions.shield()
            federation.close()


def _check_free(config: Path, changes: Sequence[str], run_id: str) -> None:
    """Refuse a run id that is taken before loading data, model and Ray in vain."""
    from ..config import load_config
    from ..federation.run_folder.folder import check_free

    check_free(Path(load_config(config, changes).outputs.folder), run_id)


def _as_before(
    root: Path,
    run_id: str | None,
    parent: str | None,
    observers: Sequence[Callable[..., None]],
    overrides: Sequence[str],
) -> Federation:
    """The federation of the run that is resumed, or of the parent of a new run.

    It has the config in that run's folder, with the given changes.
    """
    from ..config import load_config
    from ..federation.federation import Federation
    from ..federation.run_folder.folder import RunFolder, find_run

    with (
        RunFolder.open(root, run_id or "")
        if parent is None
        else RunFolder.reading(find_run(root, parent, path_first=True))
    ) as folder:
        saved = load_config(folder.path / "config.yaml", overrides)
        here = saved.model_copy(
            update={"outputs": saved.outputs.model_copy(update={"folder": str(root)})}
        )
        search = folder.manifest().get("search", [])
        name = re.sub(r"-\d{8}-\d{6}-[0-9a-f]{8}$", "", folder.run_id)
        return Federation(here, observers=observers, search=search, name=name)
