"""Loads a run's config, from a file or a mapping, with `--set` on top: all of it or an error.

The only error is `ConfigError`. It lists all problems in the order of the file: the place, the key,
what was found, what is allowed, and the nearest match. Environment variables have no effect.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from fedpilot.common.strict_yaml.errors import (
    BadFile,
    Path,
    Problem,
    dotted,
    path_of,
    printable,
)
from fedpilot.common.strict_yaml.reading import DEEPEST, LARGEST_FILE, read, text_of
from fedpilot.common.strict_yaml.schema_problems import (
    MISSING,
    UNKNOWN_KEY,
    UNUSABLE,
    Located,
    conflict_problem,
    follow,
    problems_of,
    unknown_path,
    value_at,
)
from fedpilot.common.strict_yaml.wording import (
    keys_of,
    may_be_none,
    section_among,
    value_in_words,
)

from ..errors import ConfigError
from .schema import RunConfig
from .schema.rules import BETWEEN

FIRST_OVERRIDE = LARGEST_FILE + 1
"""Places overrides after every line of the file in the order of problems."""

DOTTED = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*", re.ASCII)


Placing = Callable[[ConfigError], ConfigError]
"""Adds to config problems where their keys stand in the file."""


def load_config(path: FilePath | str, overrides: Sequence[str] = ()) -> RunConfig:
    """Load a file, with overrides such as `training.learning_rate=0.05`."""
    return _opened(path).finish(overrides)


def located(error: ConfigError, path: FilePath | str, overrides: Sequence[str] = ()) -> ConfigError:
    """Add their keys' lines to problems found after a config was loaded."""
    draft = _opened(path)
    draft.override(overrides)
    return ConfigError(
        [
            replace(problem, where=problem.where or draft.place(path_of(problem.key))[1])
            for problem in error.problems
        ]
    )


def _opened(path: FilePath | str) -> _Draft:
    name = os.fspath(path)
    try:
        document = read(text_of(name), lambda line: f"{printable(name, 200)}:{line}")
    except BadFile as error:
        raise ConfigError(error.problems) from error
    draft = _Draft(
        origin=printable(name, 200),
        values=document.value,
        places={at: (line, "") for at, line in document.lines.items() if at},
    )
    draft.problems += [(line, problem) for line, problem in document.problems]
    if document.value is None:
        draft.refuse("an empty file", draft.origin)
    if not isinstance(document.value, dict):
        first = document.lines[()]
        draft.refuse(value_in_words(document.value), f"{draft.origin}:{first}")
    return draft


def parse_config(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> RunConfig:
    """Load a mapping of sections; its problems have no lines."""
    draft = _Draft(origin="", values=values)
    if not isinstance(values, Mapping):
        draft.refuse(value_in_words(values), "")
    return draft.finish(overrides)


def read_config(
    config: RunConfig | Mapping[str, Any] | str | FilePath, overrides: Sequence[str]
) -> tuple[RunConfig, str, Placing]:
    """A config in any form, the name of its file, and what says where problems stand in it."""
    if isinstance(config, str | FilePath):
        found = partial(located, path=config, overrides=overrides)
        return load_config(config, overrides), FilePath(config).stem, found
    if not isinstance(config, RunConfig) or overrides:
        values = config.model_dump() if isinstance(config, RunConfig) else config
        config = parse_config(values, overrides)
    return config, "federation", lambda error: error


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A config during loading: values, their origins, and the problems so far."""

    origin: str
    values: Any
    places: dict[Path, tuple[int, str]] = field(default_factory=dict)
    """By value: an ordinal (its line in the file), and `--set ...` if it comes from there."""
    problems: list[tuple[int, Problem]] = field(default_factory=list)

    def refuse(self, found: str, where: str) -> None:
        """Raise for a config without any section."""
        required = ", ".join(key.name for key in keys_of(RunConfig) if key.field.is_required())
        problem = Problem(
            key="the file" if self.origin else "the config",
            found=found,
            allowed=f"sections with keys, at least: {required}",
            where=where,
        )
        raise ConfigError([*(each for _, each in self.problems), problem])

    def finish(self, overrides: Sequence[str]) -> RunConfig:
        """The config; raises ConfigError for any problem."""
        self.override(overrides)
        self._fill_empty_sections()
        try:
            config = RunConfig.model_validate(self.values)
        except ValidationError as error:
            refused = problems_of(RunConfig, error, self.values)
            found = (*refused, *self._across_sections(error, refused))
            for path, problem in sorted(found, key=lambda each: self._lacks(each[0])):
                self._add(path, problem, self._after(path, refused))
        else:
            if not self.problems:
                return config
        in_order = sorted(self.problems, key=lambda each: each[0])
        raise ConfigError([problem for _, problem in in_order])

    def override(self, overrides: Sequence[str]) -> None:
        """Replace values of the file by the overrides."""
        self.values = self._checked(self.values, (), ())
        self._spell_out()
        for number, override in enumerate(overrides):
            self._set(override, FIRST_OVERRIDE + number)
            self._spell_out()

    def _spell_out(self) -> None:
        """Expand `sites: 3`, which is short for a section."""
        sites = self.values.get("sites")
        if isinstance(sites, int) and not isinstance(sites, bool):
            self.values["sites"] = {"count": sites}

    def _across_sections(
        self, error: ValidationError, refused: Sequence[Located]
    ) -> Iterator[Located]:
        """Check the rules that span sections, which pydantic checks only if every section is right.

        A section counts as broken if its name was probably misspelt.
        """
        broken = {str(details["loc"][0]) if details["loc"] else "" for details in error.errors()}
        broken |= {problem.nearest for path, problem in refused if len(path) == 1}
        kinds = {key.name: key.section for key in keys_of(RunConfig) if key.section}
        for sections, conflicts in BETWEEN.items():
            if not broken & {"", *sections}:
                sound = [kinds[n].model_validate(self.values.get(n, {})) for n in sections]
                yield from map(conflict_problem, conflicts(*sound))

    def _add(self, path: Path, problem: Problem, after: int = 0) -> None:
        ordinal, where = self.place(path)
        self.problems.append((max(ordinal, after), replace(problem, where=where)))

    def _after(self, path: Path, refused: Sequence[Located]) -> int:
        """Order a missing key after the unknown keys beside it: one of them may be meant."""
        if not self._lacks(path):
            return 0
        unknown = [
            self.place(other)[0]
            for other, problem in refused
            if other[:-1] == path[:-1] and problem.found == UNKNOWN_KEY
        ]
        return max(unknown, default=0)

    def _lacks(self, path: Path) -> bool:
        return value_at(self.values, path) is MISSING

    def place(self, path: Path) -> tuple[int, str]:
        """The place of a value, or of the section that lacks it."""
        for length in range(len(path), 0, -1):
            if place := self.places.get(path[:length]):
                return place[0], place[1] or f"{self.origin}:{place[0]}"
        return 0, self.origin

    def _checked(self, value: Any, path: Path, above: tuple[int, ...]) -> Any:
        """The value as dicts, lists and scalars, without what no key could hold."""
        if isinstance(value, Mapping | list | tuple):
            if id(value) in above or len(above) > DEEPEST:
                found = f"more than {DEEPEST} levels"
                self._add(path, Problem(key=dotted(path[:2]), found=found, allowed="less nesting"))
                return UNUSABLE
            above = (*above, id(value))
        match value:
            case Mapping():
                for key in value:
                    if not isinstance(key, str):
                        found = f"{value_in_words(key)} as a key"
                        key_of = dotted(path) or "the config"
                        self._add(path, Problem(key=key_of, found=found, allowed="text as a key"))
                return {
                    key: self._checked(inner, (*path, key), above)
                    for key, inner in value.items()
                    if isinstance(key, str)
                }
            case list() | tuple():
                return [self._checked(v, (*path, index), above) for index, v in enumerate(value)]
            case int() if value.bit_length() > 63:
                found = value_in_words(value)
                allowed = "a whole number between -2^63 and 2^63"
                self._add(path, Problem(key=dotted(path), found=found, allowed=allowed))
                return UNUSABLE
            case str():
                return str.__str__(value)  # an enumeration's member is its text
            case float():
                return float(value)  # also for NumPy's float64
            case _:
                return value

    def _set(self, override: str, ordinal: int) -> None:
        where = f"--set {printable(override, 80)}"
        name, equals, text = override.partition("=")
        name = name.strip()
        if not equals or not DOTTED.fullmatch(name):
            found = "no `=`" if not equals else f"{printable(name) or 'nothing'} before the `=`"
            allowed = "`section.key=value`, such as `training.learning_rate=0.05`"
            problem = Problem(key="--set", found=found, allowed=allowed, where=where)
            self.problems.append((ordinal, problem))
            return
        path: Path = tuple(name.split("."))
        if unknown := unknown_path(RunConfig, path):
            self.problems.append((ordinal, replace(unknown[1], where=where)))
            return
        try:
            document = read(text, lambda _: where, path)
        except BadFile as error:
            self.problems += [(ordinal, problem) for problem in error.problems]
            return
        self.problems += [(ordinal, problem) for _, problem in document.problems]
        self._replace(path, document.value, (ordinal, where))

    def _replace(self, path: Path, value: Any, place: tuple[int, str]) -> None:
        values = self.values
        for depth, step in enumerate(path[:-1], start=1):
            there = values.get(step)
            if there is None or (not isinstance(there, dict) and _may_be_section(path[:depth])):
                values[step] = {}
                self.places[path[:depth]] = place
            values = values[step]
            if not isinstance(values, dict):
                return  # the file has no section there, which is reported from there
        for old in [old for old in self.places if old[: len(path)] == path]:
            del self.places[old]
        self.places[path] = place
        values[path[-1]] = self._checked(value, path, ())

    def _fill_empty_sections(self) -> None:
        """Treat `outputs:` with nothing below it, or only comments, as a section of defaults."""
        for key in keys_of(RunConfig):
            sections = [key, *(keys_of(key.section, key.path) if key.section else ())]
            for each in sections:
                path: Path = tuple(each.path.split("."))
                if not each.section or may_be_none(each.field.annotation):
                    continue
                if value_at(self.values, path) is None:
                    value_at(self.values, path[:-1])[path[-1]] = {}


def _may_be_section(path: Path) -> bool:
    """Whether a key takes a section, besides other values."""
    _, annotation, _ = follow(RunConfig, path)
    return section_among(annotation) is not None
