"""The command sweep: trains a config at several points of its keys, each from several seeds."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpilot.common.host.exit_codes import FAILED, INTERRUPTED
from fedpilot.common.terminal.commands import exit_codes, fail, interruptions
from fedpilot.common.terminal.console import display, print_json, spinner
from fedpilot.common.text.amounts import counted
from fedpilot.common.text.plain_text import plain_lines

from .options import EVENTS, SET
from .runs.places import DEFAULT_FOLDER

if TYPE_CHECKING:
    from ..experiments.sweep_folder import SweepFolder
    from ..experiments.sweeping import SweepResult
    from ..experiments.trials import SweepTrial
    from ..federation.events import Event, Observer


@click.command()
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--resume", metavar="SWEEP", help="Train what is left of this sweep.")
@click.option(
    "--name", metavar="NAME", help="Name of the new sweep. Default: the name of CONFIG, and time."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Folder for the sweep's own. Default: `outputs.folder` of the config, or `runs`.",
)
@SET
@click.option("--dry-run", is_flag=True, help="Check all trials and list them; train none.")
@EVENTS
def sweep(
    config: Path | None,
    resume: str | None,
    name: str | None,
    folder: Path | None,
    overrides: Sequence[str],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train CONFIG at all points of its section `sweep`, each from all seeds.

    The section has axes, whose combinations are the points, or the points themselves. Each point
    with each seed is a trial: an ordinary run, whose folder lies in the sweep's folder. The trials
    share one Ray, and train one after another. The last lines compare the points, as `fedpilot runs
    compare` does, and comparison.png shows their rounds.

    A trial that fails does not end the sweep. Ctrl-C keeps all that is trained. `--resume SWEEP`,
    without CONFIG, trains the trials that are not finished, and continues the one that was
    interrupted; each ends in the same bits.

    \b
    Examples:
      fedpilot sweep configs/rates.yaml
      fedpilot sweep configs/rates.yaml --dry-run
      fedpilot sweep my.yaml --set 'sweep.seeds=[0, 1, 2, 3, 4]'
      fedpilot sweep --resume rates-20260102-030405-a1b2c3d4
      fedpilot runs compare rates-20260102-030405-a1b2c3d4 --csv > rates.csv

    \b
    Exit codes: 0 done; 1 a trial failed; 2 wrong config or usage; 3 infeasible; 4 cluster
    unreachable; 130 interrupted.
    """
    if (config is None) == (resume is None):
        raise click.UsageError("give exactly one of CONFIG and --resume SWEEP.")
    if resume is not None and (overrides or name or dry_run):
        raise click.UsageError("a resumed sweep keeps its config and its name.")
    with exit_codes():
        from ..config import load_config
        from ..experiments.sweep_folder import SweepFolder, checked_trials
        from ..federation.run_folder.folder import new_run_id

        if config is None:
            opened = SweepFolder.open(folder or DEFAULT_FOLDER, resume or "")
        else:
            loaded = load_config(config, overrides)
            if dry_run:
                _list(checked_trials(loaded), as_json)
                return
            root = folder or Path(loaded.outputs.folder)
            own = name or new_run_id(loaded.run.name or config.stem)
            beside = str(config.resolve().parent)
            opened = SweepFolder.create(root, own, loaded, [beside])
        with opened:
            result = _train(opened, as_json)
        if not as_json:
            from .runs.comparing import comparison_table

            click.echo()
            if result.points:
                display(comparison_table(result.points))
                click.echo(f"\npicture   {result.picture}")
            click.echo(f"folder    {opened.path}")
            for reason in result.left_out:
                click.echo(f"left out: {reason}", err=True)
    if failed := result.failed:
        names = ", ".join(trial.run_id for trial in failed[:5])
        more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
        again = f"`fedpilot sweep --resume {opened.path}` tries them again"
        fail(f"{len(failed)} of {len(opened.trials)} trials failed: {names}{more}; {again}", FAILED)


def _train(opened: SweepFolder, as_json: bool) -> SweepResult:
    from ..experiments.sweeping import train_trials
    from ..federation.report.progress import JsonLines

    try:
        with interruptions() as interrupted, spinner("starting Ray") as say:
            stdout = sys.stdout
            observe: Observer = JsonLines(stdout) if as_json else _Lines(say).observe
            with redirect_stdout(sys.stderr):  # output of the user's own modules as they load
                return train_trials(opened, observe, interrupted)
    except KeyboardInterrupt:
        fail(f"interrupted; to go on: fedpilot sweep --resume {opened.path}", INTERRUPTED)


class _Lines:
    """A line for each trial that ends, and on a terminal how far the one at work is."""

    def __init__(self, say: Any) -> None:
        self._say = say
        self._stdout = sys.stdout
        self._of = 0
        self._names: Mapping[str, str] = {}
        self._now = ""

    def observe(self, event: Event) -> None:
        from ..experiments.comparison import short_names, shown
        from ..federation.report import wording

        fields = event.fields
        match event.name:
            case "sweep_started":
                self._of = fields["trials"]
                done = self._of - fields["todo"]
                self._print(
                    f"{fields['sweep']}: {counted(self._of, 'trial')}"
                    + f", {done} finished" * (done > 0)
                )
            case "trial_started":
                names = short_names(fields["point"])
                point = [f"{names[key]} {shown(value)}" for key, value in fields["point"].items()]
                self._now = ", ".join([*point, f"seed {fields['seed']}"])
                self._say(f"trial {fields['trial']} of {self._of}: {self._now}")
            case "round_finished":
                told = f"round {fields['round']} of {fields['of']}"
                self._say(f"{self._now}: {told}")
            case "trial_finished":
                results = [
                    f"{name} {fields[name]:.4f}"
                    for name in ("accuracy", "loss")
                    if fields[name] is not None
                ]
                took = f"{fields['seconds']:.1f} s"
                self._print(f"{self._place(fields)}  {self._now}: {', '.join([*results, took])}")
            case "trial_failed":
                self._print(f"{self._place(fields)}  {self._now}: failed: {fields['reason']}")
            case name:
                if name in ("worker_lost", "site_lost") and (line := wording.remark(name, fields)):
                    self._print(line)

    def _place(self, fields: Mapping[str, Any]) -> str:
        return f"{fields['trial']:{len(str(self._of))}}/{self._of}"

    def _print(self, line: str) -> None:
        click.echo(plain_lines(line), file=self._stdout)


def _list(trials: Sequence[SweepTrial], as_json: bool) -> None:
    from fedpilot.common.terminal.layout import ruled

    from ..experiments.comparison import short_names, shown

    if as_json:
        each = [{"run_id": t.run_id, "point": dict(t.point), "seed": t.seed} for t in trials]
        print_json({"trials": each})
        return
    names = short_names(dict.fromkeys(key for trial in trials for key in trial.point))
    table = ruled("trial", *names.values(), "seed")
    for trial in trials:
        values = (shown(trial.point.get(key)) for key in names)
        table.add_row(trial.run_id, *values, str(trial.seed))
    display(table)
