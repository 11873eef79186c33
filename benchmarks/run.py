"""Run the implementations by turns, several times, and compare medians in a table and as JSON."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLOWER = HERE / ".venvs" / "flower" / "bin" / "python"


def commands(workload: str, with_flower: bool) -> dict[str, list[str]]:
    """What is compared: a name, and the command that prints a RESULT line."""
    mine = sys.executable
    found = {
        "plain loop, 1 process": [mine, f"{HERE}/peers/plain_loop.py", workload, "1"],
        "plain loop, 2 processes": [mine, f"{HERE}/peers/plain_loop.py", workload, "2"],
        "fedpilot, 1 worker": [mine, f"{HERE}/fedpilot_run.py", workload, "1"],
        "fedpilot, 2 workers": [mine, f"{HERE}/fedpilot_run.py", workload, "2"],
    }
    if with_flower:
        found["Flower 1.41, 2 actors"] = [
            str(FLOWER),
            f"{HERE}/peers/flower_run.py",
            workload,
        ]
    return found


def once(command: list[str]) -> dict[str, float]:
    """One whole process: clients per second in its median round, and its wall time."""
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    wall = time.perf_counter() - started
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not results:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    result = json.loads(results[-1].removeprefix("RESULT "))
    steady = statistics.median(result["seconds"][1:])
    return {"clients_per_s": result["cohort"] / steady, "wall_s": wall}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", default="w2", choices=["w2", "w3"])
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write every figure here")
    parser.add_argument("--without-flower", action="store_true")
    arguments = parser.parse_args()
    compared = commands(arguments.workload, FLOWER.exists() and not arguments.without_flower)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in compared}
    for turn in range(arguments.reps):
        for name, command in compared.items():
            runs[name].append(once(command))
            rate = runs[name][-1]["clients_per_s"]
            print(f"{turn + 1}/{arguments.reps}  {name:<24} {rate:>10,.0f} clients/s", flush=True)
    base = statistics.median(r["clients_per_s"] for r in runs["plain loop, 1 process"])
    heading = f"clients/s (median of {arguments.reps})"
    print(f"\n| {arguments.workload} | {heading} | range | x loop | wall s |")
    print("|---|---|---|---|---|")
    for name, figures in runs.items():
        rates = [figure["clients_per_s"] for figure in figures]
        middle, wall = statistics.median(rates), statistics.median(f["wall_s"] for f in figures)
        span = f"{min(rates):,.0f}-{max(rates):,.0f}"
        print(f"| {name} | {middle:,.0f} | {span} | {middle / base:.2f} | {wall:.1f} |")
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=2) + "\n")


if __name__ == "__main__":
    main()
