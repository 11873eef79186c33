"""The commands compare and plot: several runs in one table, and in one picture."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedpilot.closed_pipes import ends_with_reader
from fedpilot.common.host.exit_codes import BAD_INPUT
from fedpilot.common.terminal.commands import exit_codes, fail
from fedpilot.common.terminal.console import display, print_json
from fedpilot.common.terminal.layout import ruled
from fedpilot.common.text.amounts import counted, duration, listed

from ..options import JSON
from .places import DEFAULT_FOLDER

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...experiments.comparison import ComparedPoint, RunFacts

RUNS = click.argument("names", metavar="[RUN]...", nargs=-1)
FOLDER = click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=DEFAULT_FOLDER,
    show_default=True,
    help="Folder of run folders on this machine.",
)
METRIC = click.option(
    "--metric",
    metavar="NAME",
    default="accuracy",
    show_default=True,
    help="A number in the rows of metrics.jsonl, such as `loss`.",
)


@click.command()
@RUNS
@FOLDER
@METRIC
@click.option("--csv", "as_csv", is_flag=True, help="Print a line of CSV for each run.")
@JSON
def compare(names: tuple[str, ...], folder: Path, metric: str, as_csv: bool, as_json: bool) -> None:
    """Compare runs: the keys in which their configs differ, and their results.

    A RUN is the id or the folder of a run, or of a sweep, which stands for its runs. Without RUN,
    the command compares all runs of the folder. Runs that differ in the seed alone share a line:
    the mean over the seeds, and the half of its 95 % interval (Student's t). Runs at a mediator
    have to be fetched first (`fedpilot runs fetch`).

    \b
    Examples:
      fedpilot runs compare first second
      fedpilot runs compare rates-20260102-030405-a1b2c3d4 --metric loss
      fedpilot runs compare --folder elsewhere/runs --csv > runs.csv
      fedpilot runs compare first second --json | jq '.points[].accuracy.mean'
    """
    if as_csv and as_json:
        raise click.UsageError("--csv or --json.")
    with exit_codes(), ends_with_reader():
        from ...experiments.comparison import document_of, points_of, records_of

        runs = _read(folder, names, metric)
        points = points_of(runs)
        if as_csv:
            records = records_of(points)
            writer = csv.DictWriter(sys.stdout, list(records[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(records)
        elif as_json:
            print_json(document_of(points, metric))
        else:
            display(comparison_table(points, metric))


@click.command()
@RUNS
@FOLDER
@METRIC
@click.option(
    "--to",
    "path",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("comparison.png"),
    show_default=True,
    help="The PNG to write.",
)
@JSON
def plot(names: tuple[str, ...], folder: Path, metric: str, path: Path, as_json: bool) -> None:
    """Draw the rounds of runs into one picture, a PNG.

    Runs that differ in the seed alone share a line, the mean over the seeds, with the 95 % interval
    of the mean as a band. RUN is as in `fedpilot runs compare`.

    \b
    Examples:
      fedpilot runs plot first second --to both.png
      fedpilot runs plot rates-20260102-030405-a1b2c3d4 --metric loss --to loss.png
    """
    if path.suffix.lower() != ".png" or not path.parent.is_dir():
        raise click.UsageError(f"--to {path}: a file that ends in .png, in a folder that exists.")
    with exit_codes():
        from ...experiments.comparison import points_of
        from ...experiments.comparison_picture import draw_comparison

        points = points_of(_read(folder, names, metric))
        draw_comparison(points, path, metric=metric, title=metric.replace("_", " "))
        if as_json:
            print_json({"picture": str(path), "points": len(points)})
        else:
            click.echo(f"wrote {path}")


def _read(folder: Path, names: Sequence[str], metric: str) -> list[RunFacts]:
    from ...experiments.comparison import metrics_of
    from ...experiments.run_reading import read_runs

    left_out: list[str] = []
    runs = read_runs(folder, names, left_out)
    for reason in left_out:
        click.echo(f"left out: {reason}", err=True)
    known = metrics_of(runs)
    if metric not in known:
        have = listed(sorted(known), 30) or "none yet"
        fail(f"no round of these runs has {metric!r}; the metrics there: {have}", BAD_INPUT)
    return runs


def comparison_table(points: Sequence[ComparedPoint], metric: str = "accuracy") -> RenderableType:
    """A line for each point: its values, its seeds, and the means of what they came to."""
    from ...experiments.comparison import short_names, shown

    names = short_names(points[0].values)
    right = ("runs", metric, f"best {metric}", "loss", "took")
    others = ("loss",) if metric != "loss" else ()
    columns = (*names.values(), "runs", metric, f"best {metric}", *others, "took")
    table = ruled(*columns, right=right, wraps="")
    for point in points:
        took = [run.seconds for run in point.runs if run.seconds is not None]
        table.add_row(
            *(shown(value) for value in point.values.values()),
            _counts(point),
            _told(point, metric),
            _told(point, metric, best=True),
            *(_told(point, name) for name in others),
            duration(sum(took) / len(took)) if took else "–",
        )
    return table


def _counts(point: ComparedPoint) -> str:
    left = sum(run.status != "finished" for run in point.runs)
    seeds = len(point.one_per_seed)
    remarks = [f"{left} not finished"] * (left > 0)
    remarks += [counted(seeds, "seed")] * (seeds < len(point.runs))
    return f"{len(point.runs)} ({', '.join(remarks)})" if remarks else str(len(point.runs))


def _told(point: ComparedPoint, metric: str, *, best: bool = False) -> str:
    """Mean and interval, and how many runs they are of, if some lack the metric."""
    spread = point.spread(metric, best=best)
    if spread is None:
        return "–"
    text = f"{spread.mean:.4f}"
    if spread.half_width is not None:
        text += f" ± {spread.half_width:.4f}"
    return text if spread.count == len(point.one_per_seed) else f"{text} of {spread.count}"
