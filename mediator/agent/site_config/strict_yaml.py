"""Reads a YAML file of an admin into a typed record, or says all that is wrong with it.

Unknown keys, keys given twice, and values of another type are refused with the file and line, the
key, what was found, what is allowed, and the nearest key that exists. Nothing is guessed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scalarbool import ScalarBoolean
from ruamel.yaml.scalarfloat import ScalarFloat
from ruamel.yaml.scalarint import ScalarInt

from fedpilot.fabric.host.exit_codes import BAD_INPUT

from ...errors import MediatorError

LARGEST_FILE = 4 << 20
"""Bytes; what is larger was not written by an admin."""
LONGEST_VALUE = 40
"""Characters of a value that a message shows."""
DEEPEST = 30
"""Levels of nesting."""

Place = tuple[int | str, ...]
Kind = TypeVar("Kind", bound=BaseModel)


class Strict(BaseModel):
    """What all sections of such files share."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )


@dataclass(frozen=True, slots=True)
class Words:
    """Says what a type allows, in an annotation, where the type itself does not."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlProblem:
    """One thing that is wrong in a file."""

    where: str
    """`file:line`."""
    key: str
    found: str
    allowed: str
    nearest: str = ""

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.key}", f"  found:   {self.found}"]
        lines.append(f"  allowed: {self.allowed}")
        if self.nearest:
            lines.append(f"  nearest: {self.nearest}")
        return "\n".join(lines)


class BadFile(MediatorError):
    """A file of the site's admin is wrong; `problems` says all that was found."""

    exits_with: ClassVar[int] = BAD_INPUT

    def __init__(self, text: str, problems: Sequence[YamlProblem] = ()) -> None:
        super().__init__(text)
        self.problems = tuple(problems)


def load(path: Path, kind: type[Kind]) -> Kind:
    """The record that a file says; BadFile for anything else."""
    values, lines = _read(path)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = tuple(_problems(error, kind, values, path, lines))
        raise _bad(problems) from error


def wrong_value(found: str, allowed: str) -> PydanticCustomError:
    """What a validator raises: it says what it found and what would be right."""
    return PydanticCustomError("in_words", "{found}", {"found": found, "allowed": allowed})


def _bad(problems: Sequence[YamlProblem]) -> BadFile:
    return BadFile("\n".join(map(str, problems)), problems)


# -- reading --------------------------------------------------------------------------------------


def _read(path: Path) -> tuple[Any, dict[Place, int]]:
    """A file's plain values, and the line of each."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        text = content.decode()
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadFile(f"{path} is not a text file in UTF-8") from error
    if len(content) > LARGEST_FILE:
        raise BadFile(f"{path} has more than {LARGEST_FILE} bytes, which no such file needs")
    try:
        document = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        found = str(error.problem or error.context).splitlines()[0]
        raise _bad([_about(path, line, found, "YAML with each key once")]) from error
    except (YAMLError, ValueError, RecursionError) as error:
        found = str(error).splitlines()[0] if str(error) else "too much nesting"
        raise _bad([_about(path, 1, found, "YAML")]) from error
    lines: dict[Place, int] = {}
    values = _plain(document, (), lines, path)
    return ({} if values is None else values), lines


def _about(path: Path, line: int, found: str, allowed: str) -> YamlProblem:
    return YamlProblem(where=f"{path}:{line}", key="the file", found=found, allowed=allowed)


def _plain(value: Any, place: Place, lines: dict[Place, int], path: Path) -> Any:
    if len(place) > DEEPEST:
        line = lines.get(place, 1)
        raise _bad([_about(path, line, f"more than {DEEPEST} levels", "less nesting")])
    match value:
        case CommentedMap():
            found = {}
            for key in value:
                line = value.lc.key(key)[0] + 1 if key in (value.lc.data or {}) else 1
                if not isinstance(key, str):
                    raise _bad([_about(path, line, f"the key {key!r}", "text as a key")])
                lines[*place, str(key)] = line
                found[str(key)] = _plain(value[key], (*place, str(key)), lines, path)
            return found
        case CommentedSeq():
            items = []
            for index, item in enumerate(value):
                lines[*place, index] = value.lc.item(index)[0] + 1
                items.append(_plain(item, (*place, index), lines, path))
            return items
        case ScalarBoolean():
            return bool(value)
        case bool() | None:
            return value
        case ScalarInt() | int():
            return int(value)
        case ScalarFloat() | float():
            return float(value)
        case str():
            return str(value)
    line = lines.get(place, 1)
    raise _bad([_about(path, line, f"a {type(value).__name__}", "text, numbers, lists, sections")])


# -- what is wrong --------------------------------------------------------------------------------


def _problems(
    error: ValidationError,
    kind: type[BaseModel],
    values: Any,
    path: Path,
    lines: Mapping[Place, int],
) -> Iterator[YamlProblem]:
    told: dict[Place, tuple[bool, YamlProblem]] = {}
    misspelt: set[Place] = set()
    for details in error.errors(include_url=False):
        place, annotation, metadata = _follow(details["loc"], kind)
        found, allowed, nearest = _said(details, place, annotation, metadata, values)
        problem = YamlProblem(
            where=f"{path}:{_line(place, lines)}",
            key=_dotted(place) or "the file",
            found=found,
            allowed=allowed,
            nearest=nearest,
        )
        if details["type"] == "extra_forbidden" and nearest:
            misspelt.add((*place[:-1], nearest))
        told.setdefault(place, (details["type"] == "missing", problem))
    # What is missing comes last: a key that was not understood may have been meant for it.
    for place, (missing, problem) in sorted(told.items(), key=lambda each: each[1][0]):
        if not (missing and place in misspelt):
            yield problem


def _said(
    details: ErrorDetails, place: Place, annotation: Any, metadata: Sequence[Any], values: Any
) -> tuple[str, str, str]:
    """What was found, what is allowed, and what is near."""
    if details["type"] == "in_words":
        return details["ctx"]["found"], details["ctx"]["allowed"], ""
    if details["type"] == "extra_forbidden":
        section = section_of(annotation)
        names = list(fields_of(section)) if section else []
        nearest = get_close_matches(str(place[-1]), names, 1)
        listed = f"nothing but: {', '.join(names)}"
        return "an unknown key", listed, nearest[0] if nearest else ""
    allowed = in_words(annotation, metadata)
    if details["type"] == "missing":
        return "it is missing", allowed, ""
    value = _value_at(values, place)
    near = get_close_matches(value, _choices(annotation), 1) if isinstance(value, str) else []
    return value_in_words(value), allowed, near[0] if near else ""


def _follow(
    location: Sequence[int | str], kind: type[BaseModel]
) -> tuple[Place, Any, Sequence[Any]]:
    """The place of a value that pydantic speaks of, its type, and what else is known of it.

    Pydantic goes on into the members of a union; the place ends at the union.
    """
    place: Place = ()
    annotation: Any = kind
    metadata: Sequence[Any] = ()
    for step in location:
        bare = _bare(annotation)
        section = section_of(annotation)
        if step == "[key]":
            break
        if section is not None:
            place = (*place, step)
            if step not in fields_of(section):
                return place, section, ()
            field = fields_of(section)[str(step)]
            annotation, metadata = field.annotation, field.metadata
        elif get_origin(bare) is list and isinstance(step, int):
            place, annotation, metadata = (*place, step), get_args(bare)[0], ()
        elif get_origin(bare) is dict and len(get_args(bare)) == 2:
            place, annotation, metadata = (*place, step), get_args(bare)[1], ()
        else:
            break
    return place, annotation, metadata


def _bare(annotation: Any) -> Any:
    """The type without what annotates it and without `None`."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
            continue
        members = _members(annotation)
        if len(members) != 1 or members[0] is annotation:
            return annotation
        annotation = members[0]


def _members(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, UnionType):
        return tuple(each for each in get_args(annotation) if each is not NoneType)
    return (annotation,)


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a type stands for, if it does."""
    bare = _bare(annotation)
    return bare if isinstance(bare, type) and issubclass(bare, BaseModel) else None


def fields_of(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a section by their keys in a file."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _choices(annotation: Any) -> tuple[str, ...]:
    bare = _bare(annotation)
    return tuple(map(str, get_args(bare))) if get_origin(bare) is Literal else ()


def in_words(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """What a type allows, such as `a whole number of at least 1`."""
    if get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        return in_words(annotation, (*metadata, *more))
    for each in metadata:
        if isinstance(each, Words):
            return each.text
    members = _members(annotation)
    if len(members) > 1 or members[0] is not annotation:
        return ", or ".join(in_words(each, metadata) for each in members)
    if section := section_of(annotation):
        return f"a section with: {', '.join(fields_of(section))}"
    origin = get_origin(annotation)
    if origin is Literal:
        return f"one of: {', '.join(map(str, get_args(annotation)))}"
    if origin is list:
        return f"a list, each {in_words(get_args(annotation)[0])}"
    if origin is dict:
        return "a section of `name: value` lines"
    bounds = _bounds(metadata)
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return plain[annotation] + bounds


def _bounds(metadata: Sequence[Any]) -> str:
    phrases = {"ge": "of at least", "gt": "above", "le": "at most", "lt": "below"}
    said = [
        f"{words} {getattr(each, name):g}"
        for name, words in phrases.items()
        for each in metadata
        if getattr(each, name, None) is not None
    ]
    return f" {' and '.join(said)}" if said else ""


def value_in_words(value: object) -> str:
    """What a file holds, such as `the text "abc"`."""
    match value:
        case None:
            return "nothing (null)"
        case bool():
            return "true" if value else "false"
        case float() if not math.isfinite(value):
            return f"the number {value}"
        case int() | float():
            return f"the number {value:g}"
        case str():
            text = value if len(value) <= LONGEST_VALUE else f"{value[: LONGEST_VALUE - 3]}..."
            return f'the text "{"".join(c if c.isprintable() else "?" for c in text)}"'
        case Mapping():
            return "a section" if value else "an empty section"
        case list():
            return f"a list of {len(value)}"
    return f"a {type(value).__name__}"


def _value_at(values: Any, place: Place) -> Any:
    for step in place:
        try:
            values = values[step]
        except (LookupError, TypeError):
            return None
    return values


def _dotted(place: Place) -> str:
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def _line(place: Place, lines: Mapping[Place, int]) -> int:
    """Where a value stands, or the section that lacks it."""
    for length in range(len(place), 0, -1):
        if place[:length] in lines:
            return lines[place[:length]]
    return 1
