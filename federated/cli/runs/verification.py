"""The command verify: checks a run against itself, or finds where two runs part."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpilot.fabric.host.exit_codes import FAILED, REFUSED, exit_code_of
from fedpilot.fabric.host.interruptions import Interruptions
from fedpilot.fabric.terminal.commands import exit_codes
from fedpilot.fabric.terminal.console import print_json
from fedpilot.mediator.cli.access import JSON, Access, with_mediator

from .files import fetch_files
from .places import FOLDER, folder_here, pointing_here

if TYPE_CHECKING:
    from ...federation.verify import Verification


@click.command("verify")
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
    with exit_codes(), Interruptions() as watched, tempfile.TemporaryDirectory() as aside:
        here = folder_here(access, folder)
        if here is None:
            here = Path(aside)
            for name in dict.fromkeys(names):
                with pointing_here(access):
                    fetch_files(access, name, here / name)
        outcome = _verified(here, names, how, clients, overrides, watched, as_json)
        if outcome.differs:
            code = FAILED
        elif outcome.failure is not None:
            code = exit_code_of(outcome.failure) or FAILED
        else:
            code = REFUSED if outcome.refused else 0
        if as_json:
            from ...federation.verify import document

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
) -> Verification:
    with redirect_stdout(sys.stderr):
        from ...federation.federation import Federation
        from ...federation.verify import ProgressLine, Replay, TextReport, Tools, verify

    text = None if as_json else TextReport(sys.stdout, clients)
    with redirect_stdout(sys.stderr), ProgressLine(sys.stderr) as telling:

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
