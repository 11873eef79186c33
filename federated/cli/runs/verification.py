"""The command verify: checks a run against itself, or finds where two runs part."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpilot.common.host.exit_codes import FAILED, REFUSED, exit_code_of
from fedpilot.common.host.interruptions import Interruptions
from fedpilot.common.terminal.commands import exit_codes
from fedpilot.common.terminal.console import print_json
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
    help="Which rounds to train again. `last`: those after the older of the kept checkpoints; "
    "without one, all rounds if they took at most a minute. `all`: all rounds. `none`: no round. "
    "For two runs, `last` trains as few rounds as possible, and `all` all up to the difference.",
)
@click.option(
    "--clients",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="List at most N of the clients that differ; the total counts all.",
)
@click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Override a config key for the training here, such as `resources.workers=1`; not a key "
    "that decides the bits.",
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
    """Check RUN against its records, or find where RUN and RUN2 differ.

    RUN is an id, or the path of a run folder. The command writes nothing there, and refuses a run
    in progress.

    One run: its rows, models and checkpoints must be consistent. Its config, code and data must be
    unchanged since the run. Rounds that the command trains again must give the same bits.

    Two runs: the command finds the first round that differs, and its clients and tensors that
    differ. The model before that round comes from a checkpoint, or from training the rounds again.
    Then the command trains the round's clients one by one with each config, unless the runs have
    recorded client digests.

    The command copies runs of a mediator to a temporary folder first. To train them again, it needs
    their code and data on this machine.

    \b
    Examples:
      fedpilot runs verify base
      fedpilot runs verify base --replay all
      fedpilot runs verify base elsewhere/runs/base --json

    \b
    Exit codes: 0 verified, or the two agree; 1 a difference; 3 the run cannot be trained again
    here: its code or data have changed.
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
