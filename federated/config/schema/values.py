"""What single values may be, what all sections share, and how a broken rule is told."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Self

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from fedpilot.common.strict_yaml.records import Strict
from fedpilot.common.strict_yaml.schema_problems import Conflict, conflicting
from fedpilot.common.strict_yaml.wording import Words, number_in_words
from fedpilot.common.text.amounts import SIZE_IN_WORDS, bytes_of


def only_plain(options: dict[str, Any]) -> dict[str, Any]:
    """Refuse what a config file cannot hold, so that a run can always be written down."""
    if refused := tuple(_not_plain(options, "options")):
        raise conflicting(*refused)
    return options


def size(value: Any) -> Any:
    """Bytes from a text that says some; anything else is left to the type's own check."""
    found = bytes_of(value) if isinstance(value, str) else None
    return value if found is None else found


def _not_plain(value: object, key: str) -> Iterator[Conflict]:
    plain = "text, numbers, true, false, null, and lists and sections of those"
    match value:
        case None | bool() | int():
            return
        case float():
            if not math.isfinite(value):
                yield Conflict(key=key, found=number_in_words(value), allowed="a finite number")
        case str():
            if value != value.encode(errors="ignore").decode():
                yield Conflict(key=key, found="half of a surrogate pair", allowed="Unicode text")
        case list():
            for index, item in enumerate(value):
                yield from _not_plain(item, f"{key}[{index}]")
        case dict():
            for name, item in value.items():
                if isinstance(name, str):
                    yield from _not_plain(name, key)
                    yield from _not_plain(item, f"{key}.{name}")
                else:
                    yield Conflict(key=key, found=f"{name!r} as a key", allowed="text as a key")
        case _:
            yield Conflict(
                key=key, found=f"a value of type `{type(value).__name__}`", allowed=plain
            )


Positive = Annotated[int, Gt(0)]
Fraction = Annotated[float, Gt(0.0), Le(1.0)]
PositiveFloat = Annotated[float, Gt(0.0)]
NonNegativeFloat = Annotated[float, Ge(0.0)]
BelowOne = Annotated[float, Ge(0.0), Lt(1.0)]
Options = Annotated[dict[str, Any], AfterValidator(only_plain)]
OwnFunction = Annotated[
    str, Field(pattern=r"^[^:\s]+:[^:\s]+$"), Words("your own `module:function`")
]
Bytes = Annotated[int, BeforeValidator(size), Gt(0), Lt(2**63), Words(SIZE_IN_WORDS)]


def any_of(names: Sequence[str]) -> str:
    """Some names as alternatives: `a`, `b` or `c`."""
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} or {last}" if first else last


class Section(Strict):
    """What all sections share: no unknown keys, and rules between keys."""

    def broken_rules(self) -> Iterator[Conflict]:
        """The rules between this section's keys that do not hold."""
        yield from ()

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        if broken := tuple(self.broken_rules()):
            raise conflicting(*broken)
        return self

    def only_with(
        self, key: str, chooser: str, *choices: str, required: bool = True
    ) -> Iterator[Conflict]:
        """The rule that `key` is given only if `chooser` has one of these values.

        If it is `required`, it must then be given.
        """
        chosen, given = getattr(self, chooser), getattr(self, key) is not None
        if (chosen in choices) != given and (given or required):
            some = any_of([f"{chooser}: {choices[0]}", *choices[1:]])
            yield Conflict(
                key=key,
                found=f"`{chooser}: {chosen}` {'with' if given else 'without'} `{key}`",
                allowed=f"{some} together with `{key}`",
            )

    def not_both(self, first: str, second: str) -> Iterator[Conflict]:
        """The rule that two keys exclude each other."""
        if getattr(self, first) is not None and getattr(self, second) is not None:
            found = f"both `{first}` and `{second}` are given"
            yield Conflict(key=second, found=found, allowed="one of the two")
