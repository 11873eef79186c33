"""What a large population costs: 100 clients per round of w2's recipe, out of ever more.

Peak memory (PSS of the process tree) and speed are taken from runs of their own, since looking at
the memory of many processes slows them down.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Mapping
from subprocess import DEVNULL, Popen

import psutil
from measuring import Failed, Run, end, measured, parser, ratios, result_of, spread, table
from run import rates, w2

SECTION = "population"
POPULATIONS = (100, 1_000, 100_000, 1_000_000)
BASE = "1,000"
"""The population of w2."""


def tree_pss(pid: int) -> int:
    """Bytes of a process and all its descendants; what they share is counted once."""
    total = 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error, OSError):
                total += process.memory_full_info().pss
    return total


def peak(population: int) -> int:
    """Peak bytes of a run."""
    process = Popen(w2(population=population), stdout=DEVNULL, start_new_session=True)
    found = 0
    try:
        while process.poll() is None:
            found = max(found, tree_pss(process.pid))
            time.sleep(0.2)
    finally:
        end(process)
    if process.returncode:
        raise Failed(f"it ended with {process.returncode}")
    return found


def once(name: str, _turn: int) -> Run:
    population = int(name.replace(",", ""))
    return {**result_of(w2(population=population)), "peak_pss_mb": round(peak(population) / 1e6, 1)}


COLUMNS = (("peak_pss_mb", 0, "peak PSS, MB"), ("start_s", 2, "first round after, s"))


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table."""
    header = ["population", "clients/s", f"of those of {BASE}", *(title for *_, title in COLUMNS)]
    base = rates(runs.get(BASE, []))
    rows = []
    for name, each in runs.items():
        mine = rates(each)
        share = ratios(mine, base).text(factor=100) + " %" if base else ""
        figures = [spread(one[key] for one in each).text(digits) for key, digits, _ in COLUMNS]
        rows.append([name, spread(mine).text(), share, *figures])
    return table(header, rows)


def main() -> None:
    arguments = parser(__doc__ or "", reps=5).parse_args()

    def say(run: Run) -> str:
        rate, memory = rates([run])[0], run["peak_pss_mb"]
        return f"{rate:>9,.0f} clients/s  {run['start_s']:.2f} s  {memory:,.0f} MB"

    names = [f"{population:,}" for population in POPULATIONS]
    runs = measured(SECTION, names, once, say, arguments)
    print("\n" + text(runs))
    if (small := runs.get("100")) and (large := runs.get("1,000,000")):
        for key, digits, title in COLUMNS:
            low, high = (statistics.median(each[key] for each in runs) for runs in (small, large))
            print(f"{title}: a million clients make it {high - low:+.{digits}f}")
