"""Memory and start-up of digits with `bootstrap`, 100 of the population per round, 20 rounds.

Prints, for populations of 100 and 1,000,000 by turns: the peak PSS of the process tree, and the
seconds from the start of the process to the first round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import psutil

COMMAND = [
    *(sys.executable, "-m", "fedpilot", "run", "configs/million_clients.yaml", "--json"),
    *("--set", "resources.workers=2", "--set", "resources.ray.num_cpus=2"),
]


def tree_pss(pid: int) -> int:
    """Bytes of a process and all its descendants; what they share is counted once."""
    total = 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error, OSError):
                total += process.memory_full_info().pss
    return total


def once(population: int) -> dict[str, float]:
    """One run: peak PSS in MB, seconds until the first round, seconds in all."""
    peak = 0
    with tempfile.TemporaryDirectory() as folder:
        size = ["--set", f"federation.number_of_clients={population}", "--folder", folder]
        started = time.perf_counter()
        process = subprocess.Popen([*COMMAND, *size], stdout=subprocess.PIPE, text=True)
        over = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not over.wait(0.2):
                peak = max(peak, tree_pss(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        first = float("nan")
        for line in process.stdout or ():
            event = json.loads(line)
            if event["event"] == "round_started" and event["round"] == 1:
                first = time.perf_counter() - started
        code = process.wait()
        over.set()
        watcher.join()
        if code:
            sys.exit(f"the run of {population} clients ended with {code}")
    return {"peak_pss_mb": peak / 1e6, "start_s": first, "wall_s": time.perf_counter() - started}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reps", type=int, default=5)
    reps = parser.parse_args().reps
    runs: dict[int, list[dict[str, float]]] = {100: [], 1_000_000: []}
    for turn in range(reps):
        for population, figures in runs.items():
            figures.append(once(population))
            print(f"{turn + 1}/{reps} {population:>9,}", figures[-1], flush=True)
    medians = {
        population: {key: statistics.median(f[key] for f in figures) for key in figures[0]}
        for population, figures in runs.items()
    }
    print("\n| population | peak PSS MB | first round after s | wall s |\n|---|---|---|---|")
    for population, figure in medians.items():
        print(
            f"| {population:,} | {figure['peak_pss_mb']:.0f} | {figure['start_s']:.2f} | "
            f"{figure['wall_s']:.2f} |"
        )
    small, large = medians.values()
    print(
        f"\na million clients cost {large['peak_pss_mb'] - small['peak_pss_mb']:+.0f} MB and "
        f"{large['start_s'] - small['start_s']:+.2f} s of start-up"
    )


if __name__ == "__main__":
    main()
