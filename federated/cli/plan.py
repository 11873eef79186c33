"""The command plan: what a run will be, with its price, before anything starts."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from fedpilot.common.host.exit_codes import REFUSED
from fedpilot.common.host.imports import many_imports
from fedpilot.common.terminal.commands import exit_codes, fail
from fedpilot.common.terminal.console import display, print_json
from fedpilot.mediator.cli.access import Access, asking, with_mediator

from .options import JSON, SET


def _check_picture(path: Path) -> None:
    if path.suffix != ".png" or not path.parent.is_dir():
        wanted = "a file `.png` in a folder that exists"
        raise click.UsageError(f"--picture {path}: wanted {wanted}.")


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@SET
@click.option(
    "--add-site",
    "add",
    metavar="NAME:SPEC",
    multiple=True,
    help="Plan with one more site: `lyon:workers=4,up=100Mbit/s,down=1Gbit/s`. SPEC may also say "
    "`round_trip=30ms` and `pace=2ms`, the time of a sample. May be given several times.",
)
@click.option(
    "--remove-site",
    "remove",
    metavar="NAME",
    multiple=True,
    help="Plan without this site. May be given several times.",
)
@click.option(
    "--like",
    metavar="RUN",
    help="Take pace, links and bytes from this earlier run, an id or a folder.",
)
@click.option(
    "--picture",
    metavar="FILE.png",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also draw the graph by site, or the sites if there is no graph.",
)
@JSON
@with_mediator
def plan(
    config: Path,
    overrides: Sequence[str],
    add: Sequence[str],
    remove: Sequence[str],
    like: str | None,
    picture: Path | None,
    access: Access,
    as_json: bool,
) -> None:
    """Show where CONFIG's clients would train, and what a round costs.

    For each site: its clients, vnodes and samples, the bytes to it and from it in a round, and the
    seconds of a round, as far as paces and links are known. If the gang does not fit, the command
    names the largest one that does, and exits with 3. It starts nothing.

    The sites are those of this machine. With --mediator, --profile or FEDPILOT_PROFILE, they are
    those of that mediator with which a run would begin.

    \b
    Examples:
      fedpilot plan configs/ring.yaml --set sites=3
      fedpilot plan my.yaml --add-site lyon:workers=4,up=100Mbit/s,down=1Gbit/s
      fedpilot plan my.yaml --like runs/base --picture plan.png
      fedpilot plan my.yaml --profile hospitals --remove-site paris --json | jq .round

    \b
    Exit codes: 0 feasible; 2 wrong config or usage; 3 infeasible; 4 mediator unreachable.
    """
    with exit_codes():
        with many_imports():
            from ..core.planning.feasibility import Shortfall
            from ..core.planning.what_if import BadWhatIf
            from ..federation.remote.planning import plan_file
            from ..federation.setup.feasibility import not_feasible

        if picture is not None:
            _check_picture(picture)
        try:
            if access.on_purpose:
                with asking(access) as client:
                    found = plan_file(
                        config, overrides, client=client, add=add, remove=remove, like=like
                    )
            else:
                found = plan_file(config, overrides, add=add, remove=remove, like=like)
        except BadWhatIf as error:
            raise click.UsageError(f"{error}.") from None
        if isinstance(found, Shortfall):
            if as_json:
                from ..core.planning.document import document_of_shortfall

                print_json(document_of_shortfall(found))
                sys.exit(REFUSED)
            fail(str(not_feasible(found)), REFUSED)
        if picture is not None:
            from ..federation.report.plan_picture import draw

            draw(found, picture, title=str(config))
        if as_json:
            from ..core.planning.document import document_of

            print_json(document_of(found))
            return
        from ..federation.report.plan_table import plan_table

        display(plan_table(found, config, time.time()))
        if picture is not None:
            click.echo(f"\ndrew {picture}")
