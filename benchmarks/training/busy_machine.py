"""A run from command to end, idle and beside 8 busy processes, and its longest silence.

The busy processes do nothing but compute, at the niceness of the run and in its session, as if both
were started from one terminal: Linux may share a machine by session before it looks at niceness. A
silence is the time between two lines that the run prints, from its start to the first, and from the
last to its end.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import pairwise

from measuring import Failed, Run, busy, end, measured, parser, ratios, spread, table

from .whole_process import fedpilot_command

SECTION = "busy_machine"
IDLE, BUSY = "idle", "beside 8 busy processes"
PROCESSES = 8
TIMEOUT_S = 900.0
SLOWEST, QUIETEST_S = 6.0, 15.0
"""The marks: how many times its idle time a busy run may take, and how long it may be silent."""


def run() -> Run:
    """One run: its wall time and its longest silence. Raises `Failed`."""
    with fedpilot_command() as command:
        times = [time.perf_counter()]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        lines = []
        try:
            assert process.stdout is not None
            for line in process.stdout:
                times.append(time.perf_counter())
                lines.append(line)
                if times[-1] - times[0] > TIMEOUT_S:
                    raise Failed(f"not done after {TIMEOUT_S:.0f} s")
            code = process.wait(TIMEOUT_S)
        finally:
            end(process)
        times.append(time.perf_counter())
    if code:
        raise Failed("".join(lines[-8:]))
    waited = max(range(len(times) - 1), key=lambda place: times[place + 1] - times[place])
    return {
        "wall_s": round(times[-1] - times[0], 3),
        "silence_s": round(max(after - before for before, after in pairwise(times)), 3),
        "silent_after": lines[waited - 1].strip() if waited else "the start",
    }


def once(name: str, _turn: int) -> Run:
    with busy(PROCESSES if name == BUSY else 0):
        return run()


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table."""
    walls = {name: [each["wall_s"] for each in found] for name, found in runs.items()}
    rows = [
        [
            name,
            spread(each).text(1),
            ratios(each, walls[IDLE]).text(2) + " ×" if name == BUSY and IDLE in walls else "",
            f"{max(run['silence_s'] for run in runs[name]):.1f}",
            str(len(each)),
        ]
        for name, each in walls.items()
    ]
    return table(["", "command to end, s", "÷ idle", "longest silence, s", "runs"], rows)


def main() -> None:
    arguments = parser(__doc__ or "", reps=5).parse_args()

    def say(run: Run) -> str:
        return (
            f"{run['wall_s']:>7.1f} s, silent for {run['silence_s']:.1f} s after "
            f"{run['silent_after'][:50]!r}"
        )

    found = measured(SECTION, [IDLE, BUSY], once, say, arguments)
    print("\n" + text(found))
    if not {IDLE, BUSY} <= found.keys():
        sys.exit("a run has failed")
    ratio = ratios(*([each["wall_s"] for each in found[name]] for name in (BUSY, IDLE))).median
    silence = max(each["silence_s"] for runs in found.values() for each in runs)
    if ratio > SLOWEST or silence > QUIETEST_S:
        sys.exit(f"{ratio:.2f} × idle (mark {SLOWEST:g}), {silence:.1f} s silent ({QUIETEST_S:g})")
