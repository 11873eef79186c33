"""Try the mutants: `make mutants`, or `PYTHONPATH=tests python -m mutants`.

    python -m mutants [--only 3,10-12] [--jobs 2] [--json]   try those that are kept
    python -m mutants measure NAME TESTS...                  which tests run which line
    python -m mutants draw [--seed 27] [--package fabric]    draw the sample anew
    python -m mutants seek [--only ...]                      find the tests that kill it
    python -m mutants anew NUMBER                            draw another for one that is lost
    python -m mutants refresh                                write moved places into the patches

Exits 1 where one survives without an explanation, where a patch has lost its place, or where the
tests fail without any mutant.
"""

from __future__ import annotations

import argparse
import json
import queue
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from . import covering, drawing, patches
from .patches import FOLDER, Lost, Mutant
from .trying import Copy, Fate, Tried, place_in, try_out, where

SEED = 27
BAD = {Fate.SURVIVED, Fate.LOST, Fate.UNTESTED}
AT_ONCE_S = 60.0
"""So many seconds of tests run in one process when the ones that kill are sought."""


@contextmanager
def copies(number: int) -> Iterator[tuple[queue.SimpleQueue[Copy], ThreadPoolExecutor]]:
    """Copies of the tree for so many threads. What runs in them ends where the caller does."""
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    made: list[Copy] = []
    try:
        for _ in range(number):
            made.append(Copy())
            free.put(made[-1])
        with ThreadPoolExecutor(number) as pool:
            try:
                yield free, pool
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for each in made:
                    each.stop()
                raise
    finally:
        for each in made:
            each.close()


def in_copies(
    jobs: int, mutants: Sequence[Mutant], act: Callable[[Copy, Mutant], Any]
) -> Iterator[tuple[Mutant, Any]]:
    """Do something with each mutant, in a copy of the tree, several at once."""
    with copies(jobs) as (free, pool):

        def one(mutant: Mutant) -> Any:
            copy = free.get()
            try:
                return act(copy, mutant)
            finally:
                free.put(copy)

        waiting = {pool.submit(one, each): each for each in mutants}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def run(args: argparse.Namespace) -> int:
    """Try all that are kept."""
    mutants = patches.only(patches.all_mutants(), args.only)
    began = time.monotonic()
    say = (lambda text: None) if args.json else (lambda text: print(text, flush=True))
    failing = _failing_without(mutants, args.jobs, say)
    if failing is not None:
        print(f"tests fail without any mutant:\n{failing}", file=sys.stderr)
        return 1
    rows = []
    for done, (mutant, (fate, seconds, note)) in enumerate(
        in_copies(args.jobs, mutants, _judged), start=1
    ):
        rows.append({"mutant": mutant.name, "fate": fate, "seconds": round(seconds, 1)})
        rows[-1] |= {"note": note} if note else {}
        say(f"[{done:3}/{len(mutants)}] {mutant.name:44} {fate:20} {seconds:5.1f} s  {note}")
    counts = Counter(row["fate"] for row in rows)
    took = time.monotonic() - began
    if args.json:
        rows.sort(key=lambda row: row["mutant"])
        print(json.dumps({"mutants": rows, "counts": counts, "seconds": round(took, 1)}))
    else:
        told = ", ".join(f"{counts[fate]} {fate}" for fate in Fate if counts[fate])
        print(f"{len(rows)} mutants: {told}; {took:.0f} s")
        for row in sorted(rows, key=lambda row: row["mutant"]):
            if row["fate"] in BAD:
                print(f"  {row['mutant']}: {row['fate']}  {row.get('note', '')}")
    return 1 if any(counts[fate] for fate in BAD) else 0


def _failing_without(
    mutants: Sequence[Mutant], jobs: int, say: Callable[[str], None]
) -> str | None:
    """What the tests say that fail already; nothing if all pass."""
    named = sorted({test for mutant in mutants for test in mutant.tests})
    say(f"{len(named)} tests without any mutant first")
    by_file: dict[str, list[str]] = {}
    for test in named:
        by_file.setdefault(test.split("::")[0], []).append(test)
    shares: list[list[str]] = [[] for _ in range(jobs)]
    for tests in sorted(by_file.values(), key=len, reverse=True):
        min(shares, key=len).extend(tests)
    with copies(jobs) as (free, pool):
        each = [free.get() for _ in range(jobs)]
        made = [
            pool.submit(copy.run, [where(test, copy.root) for test in share])
            for copy, share in zip(each, shares, strict=True)
            if share
        ]
        bad = [
            tried.output or str(tried.fate)
            for run in made
            if (tried := run.result()).fate is not Fate.SURVIVED
        ]
        for copy in each:
            free.put(copy)
    return "\n".join(bad) or None


def _judged(copy: Copy, mutant: Mutant) -> tuple[Fate, float, str]:
    if not mutant.tests:
        return Fate.UNTESTED, 0.0, "names no test"
    try:
        tried = try_out(copy, mutant)
    except Lost as error:
        return Fate.LOST, 0.0, str(error)
    if tried.fate is Fate.UNTESTED:
        return tried.fate, tried.seconds, tried.output.strip().splitlines()[-1]
    if mutant.survives and tried.fate is Fate.SURVIVED:
        return Fate.EXPLAINED, tried.seconds, mutant.survives
    if mutant.survives:
        return tried.fate, tried.seconds, "although its patch says why it survives"
    return tried.fate, tried.seconds, ""


def measure(args: argparse.Namespace) -> int:
    """Run tests under coverage."""
    return covering.measure(args.name, args.tests)


def draw(args: argparse.Namespace) -> int:
    """Draw a sample, in place of the one that is kept."""
    covered, sources = covering.covered(), drawing.shells()
    sizes = {each: len(drawing.population(sources, each)) for each in covering.SHELLS}
    for package, numbers in drawing.shares(sizes, args.number).items():
        if args.package not in ("", package):
            continue
        for old in patches.all_mutants():
            if old.number in numbers:
                (FOLDER / f"{old.name}.patch").unlink()
        drawn = drawing.draw(sources, covered, package, args.seed)
        for number, (mutant, tests) in zip(numbers, drawn, strict=False):
            _write(mutant, number, args.seed, tests)
        print(f"{package}: {sizes[package]} statements, {len(numbers)} mutants")
    return 0


def anew(args: argparse.Namespace) -> int:
    """Draw another mutant in place of one that is lost."""
    kept = patches.all_mutants()
    old = next(each for each in kept if each.number == args.number)
    seed, package = args.seed * 1_000 + args.number, old.path.split("/")[0]
    taken = {each.patch for each in kept}
    mutant, tests = next(drawing.draw(drawing.shells(), covering.covered(), package, seed, taken))
    (FOLDER / f"{old.name}.patch").unlink()
    _write(mutant, args.number, seed, tests)
    print(f"now `python -m mutants seek --only {args.number}`")
    return 0


def _write(mutant: Mutant, number: int, seed: int, tests: list[str]) -> None:
    name = f"{number:03}-{mutant.name}"
    replace(mutant, name=name, more={"seed": str(seed)}).save()
    covering.keep(name, tests)


def refresh(args: argparse.Namespace) -> int:
    """Write where each mutant and each test is now into its patch."""
    tree, lost = drawing.shells(), 0
    for mutant in patches.all_mutants():
        try:
            place = place_in(covering.ROOT, mutant, tree)
        except Lost as error:
            print(error)
            lost += 1
            continue
        patch = patches.patch_of(place.path, place.before, place.after)
        tests = tuple(where(test, covering.ROOT) for test in mutant.tests)
        replace(mutant, path=place.path, patch=patch, tests=tests).save()
    return 1 if lost else 0


def seek(args: argparse.Namespace) -> int:
    """Find a test that kills each mutant which names none, among those that run its line."""
    seconds = covering.seconds()

    def sought(copy: Copy, mutant: Mutant) -> tuple[Tried | None, int]:
        tests = covering.kept(mutant.name)[: args.most]
        tried, count = None, 0
        while tests:
            some, sum_s = 0, 0.0
            while some < len(tests) and sum_s < AT_ONCE_S:
                sum_s += seconds.get(tests[some], 1.0)
                some += 1
            now, rest = tests[:some], tests[some:]
            tried = try_out(copy, mutant, now)
            failed = tried.failed[0] if tried.failed else None
            if tried.fate is Fate.SURVIVED:
                tests, count = rest, count + some
            elif failed not in now:
                break  # it says why
            elif copy.run([failed]).fate is Fate.SURVIVED:
                break  # the mutant is what it fails by
            else:
                tests = [each for each in tests if each != failed]
        return tried, count

    wanted = [each for each in patches.all_mutants() if not each.tests and not each.survives]
    for mutant, (tried, count) in in_copies(args.jobs, patches.only(wanted, args.only), sought):
        if tried is None:
            print(f"{mutant.name}: no test is known to run its line", flush=True)
        elif tried.fate in {Fate.KILLED, Fate.HUNG} and tried.failed:
            killer = tried.failed[0].split("[")[0]
            replace(mutant, tests=(killer,)).save()
            print(f"{mutant.name}: {tried.fate}, {tried.seconds:.0f} s, {killer}", flush=True)
        else:
            print(f"{mutant.name}: {tried.fate}, {count} tests", flush=True)
            print(tried.output[-600:] if tried.fate is not Fate.SURVIVED else "", flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.splitlines()[0])
    parser.set_defaults(act=run)

    def common(each: argparse.ArgumentParser) -> None:
        each.add_argument("--only", default="", help="numbers, as 3,10-12")
        each.add_argument("--jobs", type=int, default=2, help="how many at once")

    common(parser)
    parser.add_argument("--json", action="store_true", help="the table as one JSON document")
    acts = parser.add_subparsers()
    for act in (measure, draw, anew, seek, refresh):
        each = acts.add_parser(act.__name__, help=(act.__doc__ or "").splitlines()[0])
        each.set_defaults(act=act)
        if act is measure:
            each.add_argument("name")
            each.add_argument("tests", nargs="+")
        if act in (draw, anew):
            each.add_argument("--seed", type=int, default=SEED)
        if act is draw:
            each.add_argument("--number", type=int, default=100)
            each.add_argument("--package", default="", choices=("", *covering.SHELLS))
        if act is anew:
            each.add_argument("number", type=int)
        if act is seek:
            common(each)
            each.add_argument("--most", type=int, default=400, help="tests to try per mutant")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return int(args.act(args))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
