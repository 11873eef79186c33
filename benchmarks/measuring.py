"""What the benchmarks share: processes that print a RESULT, medians with ranges, results."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
PACKAGES = ("fedpilot", "flwr", "pfl", "ray", "torch", "numpy")
RESULTS = HERE / "results.json"

Run = dict[str, Any]
"""Figures of one process."""


class Failed(Exception):
    """A process did not do what it was started for; the text is the end of what it printed."""


class Spread(NamedTuple):
    """A figure measured several times."""

    median: float
    low: float
    high: float

    def text(self, digits: int = 0, factor: float = 1) -> str:
        """Median and range, times a factor: in another unit."""
        median, low, high = (f"{factor * value:,.{digits}f}" for value in self)
        return f"{median} ({low}–{high})"


def spread(values: Iterable[float]) -> Spread:
    """Median and range of values, one at least."""
    found = sorted(values)
    return Spread(statistics.median(found), found[0], found[-1])


def ratios(mine: Sequence[float], theirs: Sequence[float]) -> Spread:
    """How many times theirs mine is, turn by turn: what slows a turn slows both."""
    return spread(m / t for m, t in zip(mine, theirs, strict=False))


def steady(seconds: Sequence[float]) -> float:
    """The median round; the first is left out."""
    return statistics.median(seconds[1:])


def command(function: str, *words: object) -> list[str]:
    """A process that calls a function, such as `sites:child`, with numbers and texts."""
    return [sys.executable, str(HERE), function, *map(str, words)]


@contextlib.contextmanager
def process(function: str, *words: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that calls a function, and is ended afterwards; by default with pipes."""
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **options}
    started = subprocess.Popen(
        command(function, *words), text=True, start_new_session=True, **options
    )
    try:
        yield started
    finally:
        end(started)


def line_of(process: subprocess.Popen[str]) -> str:
    """What it prints next. Raises `Failed` if it has ended."""
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        raise Failed("a process has ended that should say something")
    return line


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that compute and do nothing else."""
    hogs = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], process_group=0)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for hog in hogs:
            end(hog)


def finish(
    command: Sequence[str], timeout: float = 900.0, env: Mapping[str, str] | None = None
) -> tuple[str, float]:
    """Run a process to its end: what it printed, and its wall time. Raises `Failed`."""
    with tempfile.TemporaryFile("w+") as printed:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True, env=env
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise Failed(f"not done after {timeout:.0f} s") from None
        finally:
            end(process)
        wall = time.perf_counter() - started
        printed.seek(0)
        text = printed.read()
    if code:
        raise Failed("\n".join(text.splitlines()[-8:]))
    return text, wall


def end(process: subprocess.Popen[Any]) -> None:
    """End a process and what it started, if it has not ended."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)


def result_of(command: Sequence[str], timeout: float = 900.0) -> Run:
    """What a process printed in its RESULT line, and its wall time. Raises `Failed`."""
    text, wall = finish(command, timeout)
    lines = [line for line in text.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise Failed("\n".join(text.splitlines()[-8:]))
    found = json.loads(lines[-1].removeprefix("RESULT "), parse_float=lambda n: round(float(n), 6))
    return {**found, "wall_s": round(wall, 3)}


def called(function: str, *words: object, timeout: float = 900.0) -> Run:
    """What a function returns in a process of its own, and that one's wall time."""
    return result_of(command(function, *words), timeout)


def parser(description: str, reps: int) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--reps", type=int, default=reps)
    made.add_argument("--json", type=Path, help="write every figure here, after each run")
    made.add_argument("--resume", action="store_true", help="keep what --json holds, and add to it")
    return made


def measured(
    section: str,
    names: Iterable[str],
    once: Callable[[str, int], Run],
    say: Callable[[Run], str],
    arguments: argparse.Namespace,
    environments: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, list[Run]]:
    """Measure everything by turns, as the options ask; what was resumed is among the answer.

    `environments` has the versions of packages by their user; fedpilot's own unless given.
    """
    if environments is None:
        environments = {"fedpilot": versions(sys.executable)}
    before = load(arguments.json).get(section, {}) if arguments.resume and arguments.json else {}
    runs: dict[str, list[Run]] = before.get("runs", {})
    facts = {
        "machine": machine(),
        "versions": {**before.get("versions", {}), **environments},
        "runs": runs,
    }
    by_turns(names, arguments.reps, once, say, runs, lambda: save(arguments.json, section, facts))
    return {name: found for name, found in runs.items() if found}


def by_turns(
    names: Iterable[str],
    reps: int,
    once: Callable[[str, int], Run],
    say: Callable[[Run], str],
    runs: dict[str, list[Run]],
    keep: Callable[[], None],
) -> None:
    """Measure everything once, then once more, until each has `reps` runs; one line for each run.

    `once` is told what, and in which turn. What fails is said and left out from then on.
    """
    left = list(names)
    for turn in range(reps):
        for name in list(left):
            done = runs.setdefault(name, [])
            if len(done) > turn:
                continue
            started = time.perf_counter()
            try:
                done.append(once(name, turn))
                found = say(done[-1])
            except Failed as failed:
                left.remove(name)
                found = f"failed, and is left out from here on:\n{failed}"
            took = time.perf_counter() - started
            print(f"{turn + 1}/{reps}  {name:<36} {found}  [{took:.0f} s]", flush=True)
            keep()


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table that reads well in a terminal too."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in [lines[0], rule, *lines[1:]]
    )


def machine() -> dict[str, Any]:
    """The processor and what else speed depends on."""
    described = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in described if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": names[0] if names else "unknown",
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "python": ".".join(map(str, sys.version_info[:3])),
    }


def versions(python: str | Path) -> dict[str, str]:
    """What of `PACKAGES` an environment has."""
    code = (
        "import importlib.metadata as m, json, sys\n"
        "have = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
        "print(json.dumps({p: have[p] for p in sys.argv[1:] if p in have}))"
    )
    done = subprocess.run([str(python), "-c", code, *PACKAGES], capture_output=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def load(path: Path) -> dict[str, Any]:
    """All results so far."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def save(path: Path | None, section: str, found: Mapping[str, Any]) -> None:
    """Put one benchmark's results into the file, and leave the others' alone."""
    if path is None:
        return
    everything = {**load(path), section: found}
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n")
    aside.replace(path)
