r"""Reads YAML 1.2 into plain values, and remembers the line of every key.

Scalars follow YAML's core schema: `1e-3` is a number, `no` and `2024-01-01` are text. A config
names things and grows no logic, so tags, anchors and aliases are refused, and so are duplicate
keys and keys that are not text. Whatever the bytes, the only error is `ConfigError`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml
import yaml.events as fast
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from ..errors import ConfigError, Problem
from .words import printable, value_in_words

Path = tuple[str | int, ...]
"""Where a value lies: keys, and indices of lists."""

DEEPEST = 50
"""Levels of nesting; the schema needs five."""

NULL = re.compile(r"|~|null|Null|NULL")
TRUE = re.compile(r"true|True|TRUE")
FALSE = re.compile(r"false|False|FALSE")
INTEGER = re.compile(r"[-+]?[0-9]+")
OCTAL = re.compile(r"0o[0-7]+")
HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
DECIMAL = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
INFINITE = re.compile(r"([-+]?)\.(?:inf|Inf|INF)")
NOT_A_NUMBER = re.compile(r"\.(?:nan|NaN|NAN)")

PLAIN_TEXT = re.compile(r"[A-Za-z_/][\w./-]*", re.ASCII)

SCALAR = (ScalarEvent, fast.ScalarEvent)
SEQUENCE = (SequenceStartEvent, fast.SequenceStartEvent)
SEQUENCE_END = (SequenceEndEvent, fast.SequenceEndEvent)
MAPPING = (MappingStartEvent, fast.MappingStartEvent)
MAPPING_END = (MappingEndEvent, fast.MappingEndEvent)
ALIAS = (AliasEvent, fast.AliasEvent)

LARGE = 1 << 14
"""Characters from which on libyaml parses, twenty times as fast: a matrix has a row per client."""

UNALIKE = re.compile(
    r"^%|^\.\.\.|[|>][-+0-9]*#|[^\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]",
    re.MULTILINE,
)
"""What libyaml, which reads YAML 1.1, takes otherwise: directives, ends of documents, tabs,
comments that touch the head of a block of text, and characters that end a line in one of the two
only."""

NUMBER_BEGINS = frozenset("0123456789+-.")

LONGEST_INTEGER = 4000
"""Digits; beyond that Python itself refuses to convert, and the value stays text."""

KEY_OF_A_LINE = re.compile(r"([ \t]*)([A-Za-z_][\w.-]*)[ \t]*:")

EXPLANATIONS: tuple[tuple[str, str, str], ...] = (
    ("'\\t' that cannot start", "a tab", "spaces to indent with"),
    ("mapping values are not allowed", "a `:` that starts nothing", "`key: value` on one line"),
    ("could not find expected ':'", "a line that is not `key: value`", "`key: value`"),
    ("end of stream", "a quote that is never closed", "a closing `\"` or `'`"),
    ("got '<stream end>'", "a bracket that is never closed", "a closing `]` or `}`"),
    ("but found '<scalar>'", "text after the end of a value", "one value per key"),
    ("but found '-'", "a list item at the indentation of a key", "items indented below their key"),
    (
        "but found '<block mapping start>'",
        "a key that is indented unlike its neighbours",
        "the same indentation for all keys of a section",
    ),
)
"""What the parser complains of, what was found, and what is allowed."""

TOLD_TOO_LATE = ("could not find expected ':'", "end of stream", "got '<stream end>'")
"""Complaints whose cause is where the parser's context began, not where it gave up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a text says."""

    value: Any
    """Plain values: dict, list, str, int, float, bool, None."""
    lines: dict[Path, int]
    """The line of every key and list item, from 1."""
    problems: tuple[tuple[int, Problem], ...]
    """What had to be left out, with its line."""


def dotted(path: Path) -> str:
    """A path as people write it: `data.distribution_matrix[2][1]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{printable(step)}" if text else printable(step)
    return text


def read(text: str, at: Callable[[int], str], root: Path = ()) -> Document:
    """The value of a YAML text; `at` says where a line is, `root` where the value will lie.

    A large text is given to libyaml first. Where that finds a mistake, the text is read as any
    other, so that the mistake is told in the same words. So is one in which there is nothing: the
    two put an empty value into different lines.
    """
    if len(text) >= LARGE and yaml.__with_libyaml__ and not UNALIKE.search(text):
        reader = _Reader(text=text, at=at, root=root)
        with contextlib.suppress(yaml.YAMLError, ConfigError):
            value = reader.document(yaml.parse(text, Loader=yaml.CSafeLoader))
            if value is not None and not reader.problems:
                return Document(value=value, lines=reader.lines, problems=())
    reader = _Reader(text=text, at=at, root=root)
    try:
        value = reader.document(YAML(typ="safe", pure=True).parse(text))
    except MarkedYAMLError as error:
        reader.refuse_syntax(error)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        found = f"the control character U+{error.character:04X}"
        reader.refuse(line, key_near(text, line, root), found, "printable text")
    except (ValueError, OverflowError):
        # ruamel lets these through for `\U` escapes and version numbers beyond all bounds.
        reader.refuse(1, dotted(root), "an escape or a number that stands for nothing", "YAML 1.2")
    return Document(value=value, lines=reader.lines, problems=tuple(reader.problems))


def key_near(text: str, line: int, root: Path = ()) -> str:
    """The key that a line of a text that cannot be parsed is about, judged by indentation."""
    path: list[str] = []
    depth: int | None = None
    for above in reversed(text.split("\n")[:line]):
        found = KEY_OF_A_LINE.match(above)
        if found and (depth is None or len(found[1]) < depth):
            path.insert(0, found[2])
            depth = len(found[1])
            if depth == 0:
                break
    return dotted((*root, *path)) or "the file"


@dataclass(slots=True, kw_only=True)
class _Reader:
    text: str
    at: Callable[[int], str]
    root: Path
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[tuple[int, Problem]] = field(default_factory=list)

    def document(self, events: Iterator[Any]) -> Any:
        """The value that the events make; those of ruamel, or of libyaml."""
        value = None
        documents = 0
        for event in events:
            if isinstance(event, SCALAR + SEQUENCE + MAPPING + ALIAS):
                documents += 1
                if documents > 1:
                    line = event.start_mark.line + 1
                    self.refuse(line, "the file", "a second document (`---`)", "one document")
                value = self.value(event, events, self.root)
        return value

    def value(self, event: Any, events: Iterator[Any], path: Path) -> Any:
        line = event.start_mark.line + 1
        self.lines.setdefault(path, line)
        self._refuse_what_points_elsewhere(event, line, path)
        if isinstance(event, SCALAR):
            return scalar(event.value) if event.implicit[0] else event.value
        if isinstance(event, SEQUENCE):
            items: list[Any] = []
            while not isinstance(inner := next(events), SEQUENCE_END):
                items.append(self.value(inner, events, (*path, len(items))))
            return items
        return self.mapping(events, path)

    def mapping(self, events: Iterator[Any], path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(event := next(events), MAPPING_END):
            line = event.start_mark.line + 1
            key = self.value(event, events, (*path, ""))
            del self.lines[(*path, "")]
            if isinstance(key, str) and key not in values:
                self.lines[(*path, key)] = line
                values[key] = self.value(next(events), events, (*path, key))
                continue
            if isinstance(key, str):
                name, found = (*path, key), f"a second `{printable(key)}` in the same section"
                first = "" if self.root else f"; the first is in line {self.lines[name]}"
                allowed = f"each key once{first}"
            else:
                name, found = path, f"{value_in_words(key)} as a key"
                allowed = "text as a key, in quotes if need be"
            self.problems.append((line, self._problem(line, dotted(name), found, allowed)))
            self._skip(next(events), events, (*path, ""))
        return values

    def _skip(self, event: Any, events: Iterator[Any], path: Path) -> None:
        kept, self.lines = self.lines, {}
        self.value(event, events, path)
        self.lines = kept

    def _refuse_what_points_elsewhere(self, event: Any, line: int, path: Path) -> None:
        tag = getattr(event, "tag", None)
        if not tag and event.anchor is None and len(path) <= DEEPEST:
            return
        key = dotted(path).rstrip(".")
        tag = str(tag or "").replace("tag:yaml.org,2002:", "!!")
        if isinstance(event, ALIAS):
            found, allowed = f"the alias `*{printable(event.anchor)}`", "the value itself"
        elif event.anchor is not None:
            found, allowed = f"the anchor `&{printable(event.anchor)}`", "a value without an anchor"
        elif tag:
            found, allowed = f"the tag `{printable(tag)}`", "a value without a tag"
        else:
            found, allowed = f"more than {DEEPEST} levels", "less nesting"
            key = dotted(path[:2])
        self.refuse(line, key, found, allowed)

    def _problem(self, line: int, key: str, found: str, allowed: str) -> Problem:
        return Problem(key=key or "the file", found=found, allowed=allowed, where=self.at(line))

    def refuse(self, line: int, key: str, found: str, allowed: str) -> NoReturn:
        """Give up reading: report this, after what was found before."""
        before = [problem for _, problem in self.problems]
        raise ConfigError([*before, self._problem(line, key, found, allowed)]) from None

    def refuse_syntax(self, error: MarkedYAMLError) -> NoReturn:
        complaint = str(error.problem or error.context or "")
        mark = error.problem_mark or error.context_mark
        for needle, explained, instead in EXPLANATIONS:
            if needle in complaint:
                found, allowed = explained, instead
                if needle in TOLD_TOO_LATE and error.context_mark:
                    mark = error.context_mark
                break
        else:
            context = f" {error.context}" if error.context else ""
            found, allowed = printable(f"{complaint}{context}", 120), "YAML 1.2"
        line = mark.line + 1 if mark else 1
        self.refuse(line, key_near(self.text, line, self.root), f"not YAML: {found}", allowed)


def is_plain(text: str) -> bool:
    """Whether a text can be written without quotes, in any place, and is read as itself."""
    return PLAIN_TEXT.fullmatch(text) is not None and scalar(text) == text


def scalar(text: str) -> Any:
    """What an unquoted scalar stands for, by YAML 1.2's core schema."""
    if text[:1] in NUMBER_BEGINS:
        return _number(text)
    if NULL.fullmatch(text):
        return None
    if TRUE.fullmatch(text):
        return True
    return False if FALSE.fullmatch(text) else text


def _number(text: str) -> Any:
    """The number that a text is, or the text."""
    if len(text) > LONGEST_INTEGER:
        return text
    if INTEGER.fullmatch(text):
        return int(text)
    if OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if HEXADECIMAL.fullmatch(text):
        return int(text[2:], 16)
    if DECIMAL.fullmatch(text):
        return float(text)
    if sign := INFINITE.fullmatch(text):
        return float(f"{sign[1]}inf")
    return float("nan") if NOT_A_NUMBER.fullmatch(text) else text
