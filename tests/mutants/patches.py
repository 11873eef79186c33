"""A mutant as a file: a head that says what it is and which tests kill it, and a patch.

The patch is one that `git apply` takes. It is found again by content, so that it survives edits
nearby and moves to other files: the lines that it changes, with as much of their context as is
still there, in the function of that name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .changes import functions

FOLDER = Path(__file__).resolve().parent / "patches"
CONTEXT = 3


class Lost(Exception):
    """The lines that a mutant changes are not there any more, or are there twice."""

    def __init__(self, mutant: str, why: str) -> None:
        super().__init__(mutant, why)
        self.mutant, self.why = mutant, why

    def __str__(self) -> str:
        return (
            f"{self.mutant}: {self.why}; edit its patch, or make one anew: "
            f"python -m mutants anew {self.mutant.split('-')[0]}"
        )


@dataclass(frozen=True)
class Mutant:
    """One change of one file, and what is known of it."""

    name: str
    """The file's name without its ending: `017-guard-condition`."""
    path: str
    function: str
    kind: str
    patch: str
    """Its lines from `---` on."""
    tests: tuple[str, ...] = ()
    """Those that fail with it; of one that survives, those that run its line."""
    survives: str = ""
    """Why no test can or should fail."""
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def number(self) -> int:
        return int(self.name.split("-")[0])

    def text(self) -> str:
        """The file."""
        head = {"function": self.function, "kind": self.kind, **self.more}
        lines = [f"{key}: {value}" for key, value in head.items()]
        lines += [f"test: {test}" for test in self.tests]
        if self.survives:
            lines.append(f"survives: {self.survives}")
        return "\n".join(lines) + "\n\n" + self.patch

    def save(self, folder: Path = FOLDER) -> None:
        folder.mkdir(exist_ok=True)
        (folder / f"{self.name}.patch").write_text(self.text())


def load(file: Path) -> Mutant:
    """A mutant from its file."""
    head, _, patch = file.read_text().partition("\n--- ")
    said = [line.split(": ", 1) for line in head.splitlines() if ": " in line]
    once = dict(said)
    more = {k: v for k, v in once.items() if k not in {"function", "kind", "test", "survives"}}
    return Mutant(
        name=file.stem,
        path=patch.splitlines()[0].removeprefix("a/"),
        function=once["function"],
        kind=once["kind"],
        patch="--- " + patch,
        tests=tuple(value for key, value in said if key == "test"),
        survives=once.get("survives", ""),
        more=more,
    )


def all_mutants(folder: Path = FOLDER) -> list[Mutant]:
    """All that are kept, by number."""
    return [load(file) for file in sorted(folder.glob("*.patch"))]


def patch_of(path: str, before: str, after: str) -> str:
    """The change as a patch with one hunk."""
    old, new = before.splitlines(), after.splitlines()
    changed = _changed(old, new)
    low, high = max(0, changed.start - CONTEXT), min(len(old), changed.stop + CONTEXT)
    other = new[changed.start : changed.stop + len(new) - len(old)]
    head = [f"--- a/{path}", f"+++ b/{path}"]
    head.append(f"@@ -{low + 1},{high - low} +{low + 1},{high - low + len(new) - len(old)} @@")
    hunk = [f" {line}" for line in old[low : changed.start]]
    hunk += [f"-{line}" for line in old[changed]] + [f"+{line}" for line in other]
    hunk += [f" {line}" for line in old[changed.stop : high]]
    return "\n".join([*head, *hunk]) + "\n"


@dataclass(frozen=True)
class Place:
    """Where a mutant is now."""

    path: str
    before: str
    after: str


def find(mutant: Mutant, tree: Mapping[str, str]) -> Place:
    """Its place in a tree of sources by path. Lost if there is none, or more than one."""
    old, new = _sides(mutant.patch)
    others = [path for path in sorted(tree) if path != mutant.path]
    several = False
    for paths in ([mutant.path] if mutant.path in tree else [], others):
        found = list(_places(mutant.function, old, new, {path: tree[path] for path in paths}))
        if len(found) == 1:
            return found[0]
        several = several or len(found) > 1
    changed = old[_changed(old, new)]
    line = changed[0].strip() if changed else ""
    why = "occurs more than once" if several else "is not there any more"
    raise Lost(mutant.name, f"`{line}` in {mutant.function} ({mutant.path}) {why}")


def _places(
    function: str, old: list[str], new: list[str], tree: Mapping[str, str]
) -> Iterator[Place]:
    """All places with the most context that is found at all."""
    changed = _changed(old, new)
    for context in range(CONTEXT, -1, -1):
        low = max(0, changed.start - context)
        behind = len(old) - changed.stop
        high = len(old) - max(0, behind - context)
        block, other = old[low:high], new[low : len(new) - (len(old) - high)]
        found = [
            Place(path, source, "\n".join([*lines[:at], *other, *lines[at + len(block) :]]) + "\n")
            for path, source in tree.items()
            if block[changed.start - low] in source
            for lines in [source.splitlines()]
            for within in [list(_lines(function, source))]
            for at in range(len(lines) - len(block) + 1)
            if lines[at : at + len(block)] == block
            and any(at + changed.start - low in each for each in within)
        ]
        if found:
            yield from found
            return


def _lines(function: str, source: str) -> Iterator[range]:
    """Which lines (from 0) the functions of that name have."""
    for name, node in functions(ast.parse(source)):
        if name == function:
            yield range(node.lineno - 1, node.end_lineno or node.lineno)


def _sides(patch: str) -> tuple[list[str], list[str]]:
    """The lines before and after, of a patch with one hunk."""
    body = patch.splitlines()[3:]
    old = [line[1:] for line in body if line[:1] in {" ", "-", ""}]
    new = [line[1:] for line in body if line[:1] in {" ", "+", ""}]
    return old, new


def _changed(old: Sequence[str], new: Sequence[str]) -> slice:
    """Which of the old lines are others in the new ones."""
    most = min(len(old), len(new))
    low = next((i for i in range(most) if old[i] != new[i]), most)
    same = next((i for i in range(most - low) if old[-1 - i] != new[-1 - i]), most - low)
    return slice(low, len(old) - same)


def slug(path: str) -> str:
    """A module's name in a file name."""
    return re.sub(r"[^a-z]+", "-", path.removesuffix(".py").rsplit("/", 1)[-1]).strip("-")


def numbers(text: str) -> set[int]:
    """`1,4,10-12` as numbers."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def only(mutants: Iterable[Mutant], wanted: str) -> list[Mutant]:
    """Those with one of the numbers; all where none is named."""
    chosen = numbers(wanted)
    return [each for each in mutants if not chosen or each.number in chosen]
