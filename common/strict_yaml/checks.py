"""Checks that a file's values need beyond the form of its keys, and where problems are in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from .errors import Path, Problem, dotted, printable
from .schema_problems import MISSING, Located, value_at


def unique(section: str, key: str, names: list[str], given: int = 0) -> Iterator[Located]:
    """Names twice in a section; the first `given` names are taken already."""
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            path: Path = (section, i - given, key)
            yield problem(path, f'"{printable(name)}" a second time', f"each {key} once")
        seen.add(name)


def known(path: Path, what: str, name: str, those: Iterable[str]) -> Iterator[Located]:
    """The problem of a name that is none of those; it lists 20 of them at most."""
    names = set(those)
    if name in names:
        return
    listed = ", ".join(printable(each) for each in sorted(names)[:20]) or "none"
    near = get_close_matches(name, sorted(names), 1)
    yield (
        path,
        Problem(
            key=dotted(path),
            found=f'the {what} "{printable(name)}", which does not exist',
            allowed=f"one of: {listed}",
            nearest=near[0] if near else "",
        ),
    )


def problem(path: Path, found: str, allowed: str) -> Located:
    return path, Problem(key=dotted(path), found=found, allowed=allowed)


def in_file(
    problems: Sequence[Located], lines: Mapping[Path, int], name: str, values: Any
) -> list[Problem]:
    """The problems with file and line, in the order of the file.

    Missing keys come last, since they may only be misspelt.
    """
    placed = []
    for path, each in problems:
        above = (path[:length] for length in range(len(path), -1, -1))
        line = next((lines[part] for part in above if part in lines), 1)
        missing = value_at(values, path) is MISSING
        placed.append((missing, line, replace(each, where=f"{name}:{line}")))
    return [each for *_, each in sorted(placed, key=lambda each: each[:2])]
