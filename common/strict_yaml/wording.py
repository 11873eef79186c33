"""Says in plain words which values a pydantic model allows and which value a file holds."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .errors import LONGEST_VALUE, printable

SectionType = type[BaseModel]
"""A section of a file, as a model."""


@dataclass(frozen=True, slots=True)
class Words:
    """Describes what a type allows if its own rule (a pattern) would read badly."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of the schema, a section or not."""

    path: str
    """Dotted, from the top."""
    name: str
    field: FieldInfo
    owner: SectionType
    """The section that has it."""

    @property
    def section(self) -> SectionType | None:
        """The section that the key holds; None if it holds a value."""
        return section_in(self.field.annotation)

    @property
    def items(self) -> SectionType | None:
        """The section that each item of a list holds; None if it holds no list of sections."""
        kind = bare(self.field.annotation)
        return section_in(get_args(kind)[0]) if get_origin(kind) is list else None

    @property
    def default(self) -> Any:
        """The value of a key that is left out, as all other keys of its section are."""
        return self.field.get_default(call_default_factory=True, validated_data={})

    @property
    def meaning(self) -> str:
        """The docstring of the key, or else of its section."""
        return meaning_of(self.owner, self.name, self.section)

    @property
    def allowed(self) -> str:
        """The values that the key accepts, in plain words."""
        return type_in_words(self.field.annotation, self.field.metadata)


def fields_of(section: SectionType) -> dict[str, FieldInfo]:
    """The fields of a section by key, which may differ from the name: `from` is no Python name."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def meaning_of(owner: SectionType, key: str, section: SectionType | None = None) -> str:
    """The text under a key of `owner`; without one, the docstring of the section in the key."""
    named = next((name for name, each in owner.model_fields.items() if each.alias == key), key)
    said = (found for each in owner.__mro__ if (found := _docstrings(each).get(named)))
    return " ".join(next(said, (section.__doc__ if section else None) or "").split())


@lru_cache
def _docstrings(section: type) -> Mapping[str, str]:
    """By field: the text under it. Reading the source takes long, and few commands need it."""
    if not issubclass(section, BaseModel) or section is BaseModel:
        return {}
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(made, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in itertools.pairwise(made.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = text
    return found


def keys_of(section: SectionType, path: str = "") -> tuple[Key, ...]:
    """The keys of one section, in schema order."""
    return tuple(
        Key(path=f"{path}.{name}" if path else name, name=name, field=field, owner=section)
        for name, field in fields_of(section).items()
    )


def all_keys(section: SectionType, path: str = "") -> Iterator[Key]:
    for key in keys_of(section, path):
        yield key
        if key.section:
            yield from all_keys(key.section, key.path)


def members(annotation: Any) -> tuple[Any, ...]:
    """The types that a value may have except `None`: one, or the members of the union."""
    if get_origin(annotation) in (Union, UnionType):
        return tuple(each for each in get_args(annotation) if each is not NoneType)
    return (annotation,)


def may_be_none(annotation: Any) -> bool:
    """Whether `null` is a value of this type."""
    return annotation is NoneType or NoneType in get_args(annotation)


def bare(annotation: Any) -> Any:
    """The type without annotations, and without `None` if that leaves one type."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif len(inner := members(annotation)) == 1 and inner[0] is not annotation:
            annotation = inner[0]
        else:
            return annotation


def section_in(annotation: Any) -> SectionType | None:
    """The section that a type stands for, or None."""
    kind = bare(annotation)
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def section_among(annotation: Any) -> SectionType | None:
    """The one section among several types of a value; None without one."""
    kinds = members(bare(annotation))
    sections = [section for kind in kinds if (section := section_in(kind)) is not None]
    return sections[0] if len(kinds) > 1 and len(sections) == 1 else None


def choices(annotation: Any) -> tuple[str, ...]:
    """The words that a type allows as choices."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    inner = bare(annotation)
    if inner is not annotation:
        return choices(inner)
    return tuple(word for each in members(inner) if each is not inner for word in choices(each))


def type_in_words(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """What a type allows, such as `a whole number of at least 1`."""
    if get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        for each in more:
            metadata = (*metadata, *(each.metadata if isinstance(each, FieldInfo) else [each]))
        return type_in_words(annotation, metadata)
    for each in metadata:
        if isinstance(each, Words):
            return each.text
    inner = members(annotation)
    if len(inner) > 1 or inner[0] is not annotation:
        return ", or ".join(type_in_words(each, metadata) for each in inner)
    if section := section_in(annotation):
        return f"a section with: {', '.join(fields_of(section))}"
    if get_origin(annotation) is Literal:
        words = get_args(annotation)
        return f"one of: {', '.join(words)}" if len(words) > 1 else f"`{words[0]}`"
    if get_origin(annotation) is list:
        (item,) = get_args(annotation)
        return f"a list{_length(metadata)}, each {type_in_words(item)}"
    if get_origin(annotation) is dict:
        return "a section of `key: value` lines"
    if annotation is int:
        return f"a whole number{_bounds(metadata, whole=True)}"
    if annotation is float:
        return f"a number{_bounds(metadata, whole=False)}"
    return {bool: "true or false", str: "text"}[annotation]


def _length(metadata: Sequence[Any]) -> str:
    least = max((n for n in (getattr(m, "min_length", None) for m in metadata) if n), default=0)
    most = min((n for n in (getattr(m, "max_length", None) for m in metadata) if n), default=None)
    if most is None:
        return f" of at least {least}" if least else ""
    return f" of {most}" if least == most else f" of {least} to {most}"


def _bounds(metadata: Sequence[Any], *, whole: bool) -> str:
    bounds: dict[str, float] = {}
    for each in metadata:
        for name in ("ge", "gt", "le", "lt"):
            if (bound := getattr(each, name, None)) is not None:
                bounds[name] = bound
    if whole and "gt" in bounds:
        bounds["ge"] = bounds.pop("gt") + 1
    phrases = {"ge": "of at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}"}
    said = [phrases[name].format(_number(bounds[name])) for name in phrases if name in bounds]
    return f" {' and '.join(said)}" if said else ""


def _number(bound: float) -> str:
    if isinstance(bound, float):
        return f"{bound:.15g}"
    return f"2^{bound.bit_length() - 1}" if bound > 2**53 and bound.bit_count() == 1 else str(bound)


def value_in_words(value: object) -> str:
    """A value in words, such as `the text "abc"` or `nothing (null)`."""
    match value:
        case None:
            return "nothing (null)"
        case bool():
            return "true" if value else "false"
        case int() if value.bit_length() > 63:
            return "a whole number beyond 2^63"
        case int() | float():
            return number_in_words(value)
        case str():
            return f"the text {quoted(value)}"
        case Mapping():
            return "a section" if value else "an empty section"
        case list() | tuple() if len(value) == 0:
            return "an empty list"
        case list() | tuple():
            short = len(value) < 10 and all(isinstance(item, str | int | float) for item in value)
            text = json.dumps(value) if short else ""
            few = 0 < len(text) <= LONGEST_VALUE
            return f"the list {printable(text)}" if few else f"a list of {len(value)}"
        case _:
            return f"a value of type `{printable(type(value).__name__)}`"


def number_in_words(number: float) -> str:
    """A number in words; one that is not finite is spelled as in YAML."""
    spelled = {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}
    return f"the number {spelled.get(str(number), number)}"


def quoted(text: str) -> str:
    """The text in quotes, shortened, on one line."""
    return f'"{printable(text)}"'
