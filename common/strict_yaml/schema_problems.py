"""Translates the errors of a pydantic model into problems: key, found, allowed, nearest.

One mistake gives one problem: the members of a union give one together, and a misspelt key is not
also reported as missing. `root` is the model of the whole file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, TypeAlias, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from .errors import Path, Problem, dotted, path_of
from .wording import (
    Key,
    SectionType,
    all_keys,
    bare,
    choices,
    fields_of,
    keys_of,
    members,
    section_among,
    section_in,
    type_in_words,
    value_in_words,
)

MISSING = object()
"""Stands for a missing value."""

UNKNOWN_KEY = "an unknown key"

FOLLOWS = "default_factory_not_called"
"""Pydantic's error of a key whose default depends on others, one of which has a problem itself."""

UNUSABLE = object()
"""Stands for a value with a problem that was already reported."""

Located = tuple[Path, Problem]
"""A problem and the path that it is about."""

YES_OR_NO = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
"""Words that are truth values in YAML 1.1 and text in YAML 1.2."""


Conflict: TypeAlias = Problem
"""A broken rule between keys; the key to change is relative to its section."""


def conflicting(*conflicts: Conflict) -> PydanticCustomError:
    """The error that a section's validator raises for all rules that the section breaks."""
    text = "; ".join(f"{each.found} (allowed: {each.allowed})" for each in conflicts)
    return PydanticCustomError("conflicting_keys", "{text}", {"text": text, "conflicts": conflicts})


def wrong_value(found: str, allowed: str) -> PydanticCustomError:
    """The error that a value's validator raises."""
    return PydanticCustomError("wrong_value", "{found}", {"found": found, "allowed": allowed})


def problems_of(root: SectionType, error: ValidationError, values: Any) -> tuple[Located, ...]:
    """Every problem that the schema has with `values`, once for each mistake."""
    found: dict[str, Located] = {}
    for details in error.errors(include_url=False):
        if details["type"] == FOLLOWS:
            continue
        for path, problem in _problems(root, details, values):
            found.setdefault(problem.key, (path, problem))
    misspelt = {problem.nearest for _, problem in found.values()}
    return tuple(
        (path, problem)
        for path, problem in found.values()
        if not (problem.key in misspelt and value_at(values, path) is MISSING)
    )


def _problems(root: SectionType, details: ErrorDetails, values: Any) -> Iterator[Located]:
    path, annotation, metadata = follow(root, details["loc"])
    value = value_at(values, path)
    if value is UNUSABLE or (isinstance(value, dict) and section_among(annotation)):
        return  # what is wrong with a section, the section says
    if details["type"] == "conflicting_keys":
        for conflict in details["ctx"]["conflicts"]:
            within = path if section_in(annotation) else path[:-1]
            place, problem = conflict_problem(conflict, within)
            if value_at(values, place) is not UNUSABLE:
                yield place, problem
    elif details["type"] in ("extra_forbidden", "invalid_key"):
        yield path, unknown_key(root, path)
    elif details["type"] == "wrong_value":
        context = details["ctx"]
        key, found, allowed = dotted(path), context["found"], context["allowed"]
        yield path, Problem(key=key, found=found, allowed=allowed)
    else:
        allowed = type_in_words(annotation, metadata)
        if isinstance(value, float) and not math.isfinite(value):
            allowed = allowed.replace("a number", "a finite number")
        found = "it is missing" if value is MISSING else value_in_words(value)
        nearest = nearest_choice(value, annotation)
        key = dotted(path) or "the file"
        yield path, Problem(key=key, found=found, allowed=allowed, nearest=nearest)


def conflict_problem(conflict: Conflict, section: Path = ()) -> Located:
    """The problem of a broken rule in the section at a path."""
    path = (*section, *path_of(conflict.key))
    return path, replace(conflict, key=dotted(path))


def follow(root: SectionType, location: Sequence[int | str]) -> tuple[Path, Any, Sequence[Any]]:
    """The path of the value at a pydantic location, its type, and the type's metadata.

    Pydantic's location continues into the members of a union; the path ends at the union, unless
    the member is a section.
    """
    path: Path = ()
    annotation: Any = root
    metadata: Sequence[Any] = ()
    for step in location:
        among = section_among(annotation)
        if among and re.search(rf"\b{among.__name__}\]?$", str(step)):
            annotation, metadata = among, ()
            continue
        section, kind = section_in(annotation), bare(annotation)
        if section:
            path = (*path, step)
            if step not in fields_of(section):
                return path, section, ()
            known = fields_of(section)[str(step)]
            annotation, metadata = known.annotation, known.metadata
        elif get_origin(kind) is list and isinstance(step, int):
            path, annotation, metadata = (*path, step), get_args(kind)[0], ()
        elif get_origin(kind) is dict and step != "[key]":
            path, annotation, metadata = (*path, step), get_args(kind)[1], ()
        else:
            break
    return path, annotation, metadata


def value_at(values: Any, path: Path) -> Any:
    """The value at a path, or `MISSING`."""
    for step in path:
        try:
            values = values[step]
        except (LookupError, TypeError):
            return MISSING
    return values


def unknown_key(root: SectionType, path: Path) -> Problem:
    """The problem of a key that its section does not have."""
    _, above, _ = follow(root, path[:-1])
    names = ", ".join(fields_of(section_in(above) or section_among(above)))  # type: ignore[arg-type]
    return Problem(
        key=dotted(path) or '""',
        found=UNKNOWN_KEY,
        allowed=f"one of: {names}",
        nearest=nearest_key(root, path),
    )


def nearest_key(root: SectionType, path: Path) -> str:
    """The dotted key that was probably meant: the same name elsewhere, or a similar name."""
    *above, last = path
    name = _snake_case(str(last))
    _, section, _ = follow(root, above)
    inside = section_in(section) or section_among(section) or root
    here = keys_of(inside, dotted(tuple(above)))
    everywhere = tuple(all_keys(root))
    for candidates, cutoff in (
        *((here, 1.0), (everywhere, 1.0)),
        *((here, 0.85), (everywhere, 0.9)),  # a typing error
        *((here, 0.6), (everywhere, 0.75)),
    ):
        if near := _close(name, candidates, cutoff):
            return " or ".join(key.path for key in near)
    for candidates in (here, everywhere):
        spelled = [(key, _snake_case(key.name)) for key in candidates]
        short = [key for key, each in spelled if name in (*each.split("_"), _initials(each))]
        if len(short) == 1:
            return short[0].path
    return ""


def _close(name: str, keys: Sequence[Key], cutoff: float) -> list[Key]:
    spelled = {_snake_case(key.name) for key in keys}
    names = get_close_matches(name, sorted(spelled), n=1, cutoff=cutoff)
    return [key for key in keys if _snake_case(key.name) in names]


def _initials(name: str) -> str:
    return "".join(word[0] for word in name.split("_"))


def _snake_case(name: str) -> str:
    """A key name in snake case: `learningRate` and `learning-rate` become equal."""
    spread = "".join(f"_{c}" if c.isupper() else c for c in name[:64])
    return spread.lower().replace("-", "_").replace(" ", "_").replace("__", "_").strip("_")


def nearest_choice(value: Any, annotation: Any) -> str:
    """The choice that was probably meant; empty if none is near."""
    if not isinstance(value, str):
        return ""
    if bool in members(bare(annotation)):
        return YES_OR_NO.get(value.lower(), "")
    words = {word.lower(): word for word in choices(annotation)}
    near = get_close_matches(value[:64].lower(), sorted(words), n=1)
    return words[near[0]] if near else ""


def unknown_path(root: SectionType, path: Path) -> Located | None:
    """The problem of a dotted path that is not in the schema; None if it is."""
    annotation: Any = root
    for depth, step in enumerate(path):
        section = section_in(annotation) or section_among(annotation)
        if section is None:
            if get_origin(bare(annotation)) is dict:
                return None
            above = path[:depth]
            return path, Problem(
                key=dotted(path),
                found=f"a key within `{dotted(above)}`, which holds none",
                allowed=f"only `{dotted(above)}` itself: {type_in_words(annotation)}",
            )
        if step not in fields_of(section):
            problem = unknown_key(root, path[: depth + 1])
            whole = (*problem.nearest.split("."), *path[depth + 1 :])
            if problem.nearest and " " not in problem.nearest and unknown_path(root, whole) is None:
                problem = replace(problem, nearest=dotted(whole))
            return path, replace(problem, key=dotted(path))
        annotation = fields_of(section)[str(step)].annotation
    return None
