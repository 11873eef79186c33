"""One problem in a file: where, which key, what was found, what is allowed instead."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..host.exit_codes import BAD_INPUT

LONGEST_VALUE = 40
"""How many characters of a value a message shows."""

Path = tuple[str | int, ...]
"""The path to a value: keys, and indices of lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem in a file, and what would be right."""

    key: str
    """Dotted path of the key, such as `training.learning_rate`."""
    found: str
    """What the file says, or what is wrong with it."""
    allowed: str
    """What would be accepted."""
    where: str = ""
    """`file:line`, `--set`, or empty."""
    nearest: str = ""
    """The nearest existing key or value, if one is near."""

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.key}" if self.where else self.key]
        lines.append(f"  found:   {self.found}")
        lines.append(f"  allowed: {self.allowed}")
        if self.nearest:
            lines.append(f"  nearest: {self.nearest}")
        return "\n".join(lines)


class BadFile(Exception):
    """A file cannot be used; `problems` lists everything that is wrong with it."""

    exits_with: ClassVar[int] = BAD_INPUT

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(tuple(problems))
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))

    @classmethod
    def about(cls, where: str, found: str, allowed: str) -> BadFile:
        """The error for one problem of the whole file."""
        return cls([Problem(key="the file", found=found, allowed=allowed, where=where)])


def dotted(path: Path) -> str:
    """A path as users write it: `data.distribution_matrix[2][1]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{printable(step)}" if text else printable(step)
    return text


def path_of(key: str) -> Path:
    """The path of a key as `dotted` writes it."""
    path: list[str | int] = []
    for step in key.split("."):
        name, *indices = re.split(r"\[(\d+)\]", step)
        path += [name, *(int(index) for index in indices if index)]
    return tuple(path)


def printable(text: str, longest: int = LONGEST_VALUE) -> str:
    """The text on one line, shortened, with control characters escaped."""
    short = text if len(text) <= longest else f"{text[: longest - 3]}..."
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in short)
