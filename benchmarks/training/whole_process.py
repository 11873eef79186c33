"""The wall time of everything: 20 rounds of w2 from the command line, start and stop included.

fedpilot judges every model, writes its run folder and draws the picture; Flower judges every model.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedpilot_run import config
from measuring import Run, finish, measured, parser, ratios, result_of, spread, table, versions
from run import IMPLEMENTATIONS

SECTION = "whole_process"
ROUNDS = 20
OURS = "fedpilot run, 2 workers"
PEERS = ("Flower, 2 actors", "Flower, 4 actors")


@contextmanager
def fedpilot_command() -> Iterator[list[str]]:
    """`fedpilot run` of w2, whose files lie in a folder that goes afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w2.yaml"
        path.write_text(json.dumps(config("w2", rounds=ROUNDS, folder=folder, evaluate=True)))
        yield [sys.executable, "-m", "fedpilot", "run", str(path)]


def once(name: str, _turn: int) -> Run:
    if name == OURS:
        with fedpilot_command() as command:
            _, wall = finish(command)
        return {"wall_s": round(wall, 3)}
    command = IMPLEMENTATIONS[name].command("w2")
    return {"wall_s": result_of([*command, "--rounds", str(ROUNDS), "--evaluate"])["wall_s"]}


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table."""
    walls = {name: [run["wall_s"] for run in each] for name, each in runs.items()}
    rows = [
        [
            name,
            spread(each).text(1),
            "" if name == OURS or OURS not in walls else ratios(each, walls[OURS]).text(2) + " ×",
            str(len(each)),
        ]
        for name, each in walls.items()
    ]
    return table(["", "whole process, s", "this ÷ fedpilot", "runs"], rows)


def main() -> None:
    arguments = parser(__doc__ or "", reps=9).parse_args()
    peers = [name for name in PEERS if IMPLEMENTATIONS[name].installed]
    environments = {"fedpilot": versions(sys.executable)}
    if peers:
        environments["flower"] = versions(IMPLEMENTATIONS[peers[0]].bin / "python")
    else:
        print("skipped: Flower (not installed: benchmarks/peers/install.sh flower)")

    def say(run: Run) -> str:
        return f"{run['wall_s']:>9,.1f} s"

    print("\n" + text(measured(SECTION, [OURS, *peers], once, say, arguments, environments)))
