"""`fedpilot simulate`: plays a case file without Ray, and checks what the cases expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpilot.common.host.exit_codes import BAD_INPUT, FAILED
from fedpilot.common.terminal.commands import exit_codes, fail
from fedpilot.common.terminal.console import display, print_json

if TYPE_CHECKING:
    from ..simulation.case_schema import Case


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.png",
    help="Draw what each project had over time; for one case that says when work arrives or ends.",
)
def simulate(file: Path, as_json: bool, picture: Path | None) -> None:
    """Decide the cases in FILE as the scheduler would, without Ray.

    FILE is YAML or JSON: one case, or `cases:` with a list. A case has machines, queues and
    workloads. The command settles it and prints which workloads run and where, the fair shares,
    and all decisions with their reasons. If a case says what it expects, the command checks
    it, and ends with exit code 1 if something differs.

    \b
    Examples:
      fedpilot simulate cluster.yaml
      fedpilot simulate cases.json --json | jq '.cases[0].decisions'
      fedpilot simulate day.yaml --picture day.png
    """
    with exit_codes():
        from ..simulation.case_file import read_cases
        from ..simulation.expectations import differences
        from ..simulation.play import play

        cases = read_cases(file)
        if picture is not None:
            _draw(cases, picture)
        answers = [play(case) for case in cases]
        failed = {
            case.id: found
            for case, answer in zip(cases, answers, strict=True)
            if (found := differences(case, answer))
        }
        if as_json:
            print_json({"cases": [_answered(each, failed) for each in answers]})
        else:
            from .terminal.simulated import case_view

            for case, answer in zip(cases, answers, strict=True):
                display(case_view(case, answer, failed.get(case.id, [])))
        if failed:
            told = [f"{id}: {text}" for id, texts in failed.items() for text in texts]
            fail("\n".join(told), FAILED)


def _draw(cases: Sequence[Case], picture: Path) -> None:
    from ..simulation.case_schema import SettleCase
    from ..simulation.replay import is_replay

    able = [case for case in cases if isinstance(case, SettleCase) and is_replay(case)]
    if len(able) != 1:
        fail(
            "--picture: wanted a file with one case whose workloads have `arrives_s` or "
            f"`runs_s`, found {len(able)}",
            BAD_INPUT,
        )
    from ..simulation.picture import draw
    from ..simulation.replay import replayed

    draw(replayed(able[0]), able[0].summary or able[0].id, picture)


def _answered(answer: Mapping[str, Any], failed: Mapping[str, list[str]]) -> dict[str, Any]:
    found = failed.get(answer["id"])
    return dict(answer) if found is None else {**answer, "failed": found}
