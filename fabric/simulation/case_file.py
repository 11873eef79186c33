"""Reads a case file, JSON or YAML, or reports all that is wrong with it: file, line, key.

A file holds one case or `{"cases": [...]}`. Valid JSON takes a fast path; the lines are looked up
only when there is a problem to locate.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from fedpilot.common.strict_yaml.checks import in_file
from fedpilot.common.strict_yaml.errors import BadFile, Path, Problem, dotted, printable
from fedpilot.common.strict_yaml.reading import read, text_of
from fedpilot.common.strict_yaml.schema_problems import MISSING, Located, problems_of
from fedpilot.common.strict_yaml.wording import value_in_words

from .case_checks import problems_in
from .case_schema import KINDS, Case

LARGEST_CASE_FILE = 64 * 2**20
"""In bytes: 15,000 workloads take a tenth of that."""
SCHEMA_VERSIONS = (1, 2)


def read_cases(path: FilePath) -> list[Case]:
    """The cases of a file, in its order. Raises BadFile."""
    name = printable(str(path), 200)
    text = text_of(path, largest=LARGEST_CASE_FILE)
    values = _from_json(text)
    if values is MISSING:
        document = read(text, lambda line: f"{name}:{line}")
        if document.problems:
            raise BadFile([problem for _, problem in document.problems])
        values = document.value
    found: list[Case] = []
    problems: list[Located] = []
    for prefix, case in _cases(values, problems):
        _read_case(prefix, case, found, problems)
    problems += _twice([(("cases", i, "id"), case.id) for i, case in enumerate(found)])
    if problems:
        raise BadFile(_located(problems, text, name, values))
    return found


def _from_json(text: str) -> Any:
    """The value of a JSON text without repeated keys; MISSING for any other text."""
    if text.lstrip()[:1] not in ("{", "["):
        return MISSING
    try:
        return json.loads(text, object_pairs_hook=_each_once, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return MISSING


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _cases(values: Any, problems: list[Located]) -> Iterator[tuple[Path, Any]]:
    """The cases in a file, each with its path."""
    if not isinstance(values, Mapping):
        problem = Problem(
            key="the file", found=value_in_words(values), allowed="a case, or `cases:` with a list"
        )
        problems.append(((), problem))
        return
    version = values.get("schema_version", 1)
    if version not in SCHEMA_VERSIONS or isinstance(version, bool):
        allowed = " or ".join(map(str, SCHEMA_VERSIONS))
        found = value_in_words(version)
        problem = Problem(key="schema_version", found=found, allowed=allowed)
        problems.append((("schema_version",), problem))
    if "cases" not in values:
        yield (), {key: value for key, value in values.items() if key != "schema_version"}
        return
    for key in values.keys() - {"cases", "schema_version"}:
        problems.append(((key,), _unknown(key, ("cases", "schema_version"))))
    cases = values["cases"]
    if not isinstance(cases, list):
        problem = Problem(key="cases", found=value_in_words(cases), allowed="a list of cases")
        problems.append((("cases",), problem))
        return
    for number, case in enumerate(cases):
        yield ("cases", number), case


def _unknown(key: str, known: Sequence[str]) -> Problem:
    near = get_close_matches(key, known, 1)
    allowed = f"one of: {', '.join(known)}"
    return Problem(
        key=key, found="an unknown key", allowed=allowed, nearest=near[0] if near else ""
    )


def _read_case(prefix: Path, values: Any, found: list[Case], problems: list[Located]) -> None:
    kind = values.get("kind") if isinstance(values, Mapping) else None
    model = KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        path = (*prefix, "kind")
        words = "it is missing" if kind is None else value_in_words(kind)
        near = get_close_matches(str(kind), KINDS, 1)
        problem = Problem(
            key=dotted(path),
            found=words,
            allowed=f"one of: {', '.join(KINDS)}",
            nearest=near[0] if near else "",
        )
        problems.append((path, problem))
        return
    try:
        case = model.model_validate(values)
    except ValidationError as error:
        for path, problem in problems_of(model, error, values):
            whole = (*prefix, *path)
            problems.append((whole, replace(problem, key=dotted(whole))))
        return
    found.append(case)
    for path, problem in problems_in(case):
        whole = (*prefix, *path)
        problems.append((whole, replace(problem, key=dotted(whole))))


def _twice(named: Sequence[tuple[Path, str]]) -> list[Located]:
    seen: dict[str, Path] = {}
    problems = []
    for path, name in named:
        if name in seen:
            found = f'the id "{printable(name)}" a second time'
            problem = Problem(key=dotted(path), found=found, allowed="each id once in a file")
            problems.append((path, problem))
        seen.setdefault(name, path)
    return problems


def _located(problems: list[Located], text: str, name: str, values: Any) -> list[Problem]:
    """The problems with file and line, in the order of the file."""
    lines = read(text, lambda line: f"{name}:{line}").lines
    return in_file(problems, lines, name, values)
