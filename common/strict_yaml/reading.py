"""Reads YAML 1.2 into plain values and remembers the line of every key.

Scalars follow YAML's core schema: `1e-3` is a number, `no` and `2024-01-01` are text. Tags,
anchors, aliases, second documents, duplicate keys and keys that are not text are refused
(decision 6). Every error is a `BadFile`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, NoReturn

import yaml
from yaml.events import (
    AliasEvent,
    MappingEndEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from yaml.reader import ReaderError

from .errors import BadFile, Path, Problem, dotted, printable
from .wording import value_in_words

LARGEST_FILE = 4 * 2**20
"""In bytes; a config with a distribution matrix for a thousand clients has a tenth of that."""

DEEPEST = 50
"""Levels of nesting; the config needs five."""

WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
"""Unquoted words that are not text."""
INTEGER = re.compile(r"[-+]?[0-9]+")
OCTAL = re.compile(r"0o[0-7]+")
HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
DECIMAL = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
INFINITE = re.compile(r"([-+]?)\.(?:inf|Inf|INF)")
NOT_A_NUMBER = re.compile(r"\.(?:nan|NaN|NAN)")

PLAIN_TEXT = re.compile(r"[A-Za-z_/][\w./-]*", re.ASCII)

LARGE = 1 << 14
"""The size in characters from which libyaml parses, which is twenty times as fast."""

UNALIKE = re.compile(r"^%|^\.\.\.|[|>][-+0-9]*#|\t|\ufeff", re.MULTILINE)
"""Input that libyaml and PyYAML's own parser read differently."""

LINE_BREAKS_OF_1_1 = "\x85\u2028\u2029"
"""Characters that end a line in YAML 1.1, which PyYAML implements, but not in YAML 1.2."""

NUMBER_BEGINS = frozenset("0123456789+-.")

LONGEST_INTEGER = 4000
"""In digits; Python refuses to convert longer ones, and the value stays text."""

KEY_OF_A_LINE = re.compile(r"([ \t]*)([A-Za-z_][\w.-]*)[ \t]*:")

EXPLANATIONS: tuple[tuple[str, str, str], ...] = (
    ("'\\t' that cannot start", "a tab", "spaces to indent with"),
    ("mapping values are not allowed", "an unexpected `:`", "`key: value` on one line"),
    ("could not find expected ':'", "a line that is not `key: value`", "`key: value`"),
    ("but got '?'", "a `?` in brackets", "text with a `?` in quotes"),
    ("end of stream", "an unclosed quote", "a closing `\"` or `'`"),
    ("got '<stream end>'", "an unclosed bracket", "a closing `]` or `}`"),
    ("but found '<scalar>'", "text after the end of a value", "one value per key"),
    ("but found '-'", "a list item at the indentation of a key", "items indented below their key"),
    (
        "but found '<block mapping start>'",
        "a key whose indentation differs from its neighbours'",
        "the same indentation for all keys of a section",
    ),
)
"""Part of the parser's message, the description of the error, and what is allowed."""

LOCATED_TOO_LATE = ("could not find expected ':'", "end of stream", "got '<stream end>'")
"""Messages about an error that lies where the parser's context began, not where it stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed text."""

    value: Any
    """Plain values: dict, list, str, int, float, bool, None."""
    lines: dict[Path, int]
    """The line of every key and list item, from 1."""
    problems: tuple[tuple[int, Problem], ...]
    """What had to be left out, with its line."""


def text_of(path: FilePath | str, largest: int = LARGEST_FILE) -> str:
    """The text of a file of at most `largest` bytes. Raises BadFile."""
    where = printable(str(path), 200)
    try:
        with open(path, "rb") as file:
            content = file.read(largest + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a file name"
        known: dict[type[Exception], str] = {
            FileNotFoundError: "there is no such file",
            IsADirectoryError: "a folder",
        }
        found = known.get(type(error), f"it cannot be read: {why}")
        raise BadFile.about(where, found, "a YAML file that can be read") from error
    return decoded(content, where, largest)


def decoded(content: bytes, where: str, largest: int = LARGEST_FILE) -> str:
    """Decode UTF-8. Raises BadFile, with `where`, for other bytes or too many."""
    if len(content) > largest:
        mebibytes = f"{largest // 2**20} MiB"
        raise BadFile.about(where, f"more than {mebibytes}", f"at most {mebibytes}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        found = f"the byte 0x{content[error.start]:02X}, which is not UTF-8 text"
        raise BadFile.about(f"{where}:{line}", found, "a text file in UTF-8") from None


def read(text: str, at: Callable[[int], str], root: Path = ()) -> Document:
    """Parse a YAML text; `at` formats a line number, and `root` is the path of the whole value.

    libyaml parses a large text first. If it finds a problem or no value, PyYAML's own parser,
    whose marks are more exact, reads the text again.
    """
    stand_ins = _stand_ins(text)
    parsed = text.translate({ord(each): stand_in for stand_in, each in stand_ins.items()})

    def reader() -> _Reader:
        restored = {ord(stand_in): each for stand_in, each in stand_ins.items()}
        return _Reader(text=text, at=at, root=root, restored=restored)

    if len(text) >= LARGE and yaml.__with_libyaml__ and not UNALIKE.search(text):
        fast = reader()
        with contextlib.suppress(yaml.YAMLError, BadFile):
            value = fast.document(yaml.parse(parsed, Loader=yaml.CSafeLoader))
            if value is not None and not fast.problems:
                return Document(value=value, lines=fast.lines, problems=())
    exact = reader()
    try:
        value = exact.document(yaml.parse(parsed, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        exact.refuse_syntax(error)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        found = f"the control character U+{error.character:04X}"
        exact.refuse(line, key_near(text, line, root), found, "printable text")
    except (ValueError, OverflowError):
        # PyYAML raises these for `\\U` escapes and version numbers that are out of range.
        exact.refuse(1, dotted(root), "an escape or a number out of range", "YAML 1.2")
    return Document(value=value, lines=exact.lines, problems=tuple(exact.problems))


def _stand_ins(text: str) -> dict[str, str]:
    """Characters that are not in the text, to replace those that PyYAML takes for line breaks."""
    found = [each for each in LINE_BREAKS_OF_1_1 if each in text]
    unused = (char for char in map(chr, range(0xE000, 0xF900)) if char not in text)
    return dict(zip(unused, found, strict=False)) if found else {}


def key_near(text: str, line: int, root: Path = ()) -> str:
    """The key that a line of an unparsable text belongs to, judged by indentation."""
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
    restored: dict[int, str]
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[tuple[int, Problem]] = field(default_factory=list)

    def document(self, events: Iterator[Any]) -> Any:
        value = None
        documents = 0
        for event in events:
            if isinstance(event, NodeEvent):
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
        if isinstance(event, ScalarEvent):
            text = event.value.translate(self.restored) if self.restored else event.value
            return scalar(text) if event.implicit[0] else text
        if isinstance(event, SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(inner := next(events), SequenceEndEvent):
                items.append(self.value(inner, events, (*path, len(items))))
            return items
        return self.mapping(events, path)

    def mapping(self, events: Iterator[Any], path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(event := next(events), MappingEndEvent):
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
        if isinstance(event, AliasEvent):
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
        before = [problem for _, problem in self.problems]
        raise BadFile([*before, self._problem(line, key, found, allowed)]) from None

    def refuse_syntax(self, error: yaml.MarkedYAMLError) -> NoReturn:
        complaint = str(error.problem or error.context or "")
        mark = error.problem_mark or error.context_mark
        for needle, explained, instead in EXPLANATIONS:
            if needle in complaint:
                found, allowed = explained, instead
                if needle in LOCATED_TOO_LATE and error.context_mark:
                    mark = error.context_mark
                break
        else:
            context = f" {error.context}" if error.context else ""
            found, allowed = printable(f"{complaint}{context}", 120), "YAML 1.2"
        line = mark.line + 1 if mark else 1
        self.refuse(line, key_near(self.text, line, self.root), f"not YAML: {found}", allowed)


def is_plain(text: str) -> bool:
    """Whether a text can be written without quotes anywhere and is read unchanged."""
    return PLAIN_TEXT.fullmatch(text) is not None and scalar(text) == text


def scalar(text: str) -> Any:
    """The value of an unquoted scalar in YAML 1.2's core schema."""
    if text[:1] in NUMBER_BEGINS:
        return _number(text)
    return WORDS.get(text, text)


def _number(text: str) -> Any:
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
