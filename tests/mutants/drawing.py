"""The sample: mutants drawn from all statements of the shells that a fast test runs.

Each package has a share, by its statements. Within a package a statement is drawn without regard
to which; then one of the kinds of change that it allows; then one change of that kind. Nothing is
drawn twice, and nothing is put back because it survives.
"""

from __future__ import annotations

import random
from collections.abc import Container, Iterator
from fnmatch import fnmatch
from pathlib import Path

from .changes import Source, Statement
from .covering import OMITTED, ROOT, SHELLS, Covered
from .patches import Mutant, patch_of, slug


def shells(root: Path = ROOT) -> dict[str, str]:
    """The sources of all shells, by path."""
    found = {}
    for package in SHELLS:
        for file in sorted((root / package).rglob("*.py")):
            path = file.relative_to(root).as_posix()
            if not any(fnmatch(path, pattern) for pattern in OMITTED):
                found[path] = file.read_text()
    return found


def population(sources: dict[str, str], package: str) -> list[tuple[str, Statement]]:
    """All statements of a package that can be changed, in order."""
    return [
        (path, statement)
        for path, text in sorted(sources.items())
        if path.startswith(f"{package}/")
        for statement in Source(text).statements()
    ]


def shares(sizes: dict[str, int], number: int) -> dict[str, range]:
    """The numbers of each package's mutants: as many as its part of all statements."""
    total, before, begin = sum(sizes.values()), 0, 1
    found = {}
    for package, size in sizes.items():
        before += size
        end = 1 + round(number * before / total)
        found[package] = range(begin, end)
        begin = end
    return found


def draw(
    sources: dict[str, str],
    covered: Covered,
    package: str,
    seed: int,
    taken: Container[str] = frozenset(),
) -> Iterator[tuple[Mutant, list[str]]]:
    """Mutants of a package without end; each with the tests that run its line, likely ones first.

    They have no number yet.
    """
    rng = random.Random(f"{seed} {package}")
    statements = [
        (path, statement, tests)
        for path, statement in population(sources, package)
        if (tests := covered.tests(path, statement.lines))
    ]
    rng.shuffle(statements)
    for path, statement, tests in statements:
        kind = rng.choice(sorted(statement.edits))
        edits = statement.edits[kind][:]
        rng.shuffle(edits)
        source = Source(sources[path])
        made = next((change for each in edits if (change := source.change(each))), None)
        if made is None:
            continue
        patch = patch_of(path, sources[path], made.applied(sources[path]))
        if patch in taken:
            continue
        name = f"{slug(path)}-{kind}"
        yield Mutant(name, path, statement.function, kind, patch), covered.sorted(path, tests)
