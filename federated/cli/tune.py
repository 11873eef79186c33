"""The command tune: measures executions on this machine, and writes the fastest into a config."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedpilot.common.host.exit_codes import BAD_INPUT, FAILED
from fedpilot.common.terminal.commands import exit_codes, fail

from .options import JSON, SET

if TYPE_CHECKING:
    from ..core.execution.facts import Execution
    from ..prepare.execution.tuning import Tuned


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@SET
@click.option("--write", is_flag=True, help="Write the fastest execution to CONFIG.")
@JSON
def tune(config: Path, overrides: Sequence[str], write: bool, as_json: bool) -> None:
    """Find the fastest execution for CONFIG's model on this machine.

    With `training.execution: auto`, a cost model chooses the execution, the same on every machine.
    `tune` measures each execution that the model allows, in CPU time of one thread. Only with
    --write does it change CONFIG: it sets `training.execution` and `training.chunk_size`.

    Both keys belong to the run's identity: another execution can change the last bits of a result.

    \b
    Examples:
      fedpilot tune my.yaml
      fedpilot tune my.yaml --write

    Exit code 1: the machine is too busy to measure (wall time and CPU time differ).
    """
    from ..config import load_config
    from ..core.execution.autotune import Disturbed
    from ..prepare.execution.tuning import tune as measure, write as write_into
    from ..prepare.inputs.local_data import gather

    with exit_codes():
        found = load_config(config, overrides)
        if found.data.from_ is not None:
            fail("the data is at sites: run `tune` at one, with a config that loads it", BAD_INPUT)
        if any(each.gpus_per_worker for each in found.resources.classes):
            fail("`tune` measures CPUs: leave out `resources.gpus_per_worker`", BAD_INPUT)
        try:
            tuned = measure(found, gather(found))
        except Disturbed as error:
            fail(str(error), FAILED)
        if write:
            write_into(config, tuned.verdict.fastest)
    click.echo(_document(tuned, config, write) if as_json else _table(tuned, config, write))


def _named(execution: Execution) -> dict[str, str | int]:
    return {"execution": str(execution.kind), "chunk_size": execution.chunk_size}


def _document(tuned: Tuned, config: Path, written: bool) -> str:
    seconds = tuned.verdict.seconds
    rows = [{**_named(way), "seconds_per_step": taken} for way, taken in seconds.items()]
    return json.dumps(
        {
            "measured": rows,
            "refused": {str(kind): why for kind, why in tuned.refused.items()},
            "auto": _named(tuned.chosen),
            "fastest": _named(tuned.verdict.fastest),
            "written": str(config) if written else None,
        },
        indent=2,
    )


def _table(tuned: Tuned, config: Path, written: bool) -> str:
    seconds, fastest = tuned.verdict.seconds, tuned.verdict.fastest
    lines = ["execution   chunk  CPU time of a client's step"]
    for way, taken in sorted(seconds.items(), key=lambda each: each[1]):
        marks = [
            *(["fastest"] if way == fastest else []),
            *(["chosen by `auto`"] if way == tuned.chosen else []),
        ]
        figure = f"{1e6 * taken:10,.1f} µs"
        lines.append(f"{way.kind:<11} {way.chunk_size:5} {figure}  {', '.join(marks)}".rstrip())
    lines += [f"{kind:<11}       no: {why}" for kind, why in tuned.refused.items()]
    if written:
        lines.append(
            f"wrote execution: {fastest.kind}, chunk_size: {fastest.chunk_size} to {config}"
        )
    elif fastest != tuned.chosen:
        gain = seconds[tuned.chosen] / seconds[fastest] if tuned.chosen in seconds else 0.0
        than = f", {gain:.2f}x as fast as `auto`," if gain else ""
        lines.append(f"to use {fastest.kind}{than} run: fedpilot tune {config} --write")
    else:
        lines.append("`auto` chooses the fastest: there is nothing to write")
    return "\n".join(lines)
