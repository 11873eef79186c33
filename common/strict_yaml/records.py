"""Reads a YAML file into a pydantic record, or reports everything that is wrong with the file."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from .checks import in_file
from .errors import BadFile, printable
from .reading import read, text_of
from .schema_problems import problems_of

Record = TypeVar("Record", bound=BaseModel)


class Strict(BaseModel):
    """A section of a file: no unknown keys, no conversions, immutable, docs under the fields."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        allow_inf_nan=False,
        serialize_by_alias=True,
    )


def load(path: FilePath, kind: type[Record]) -> Record:
    """The record in a file; an empty file is an empty section. Raises BadFile."""
    name = printable(str(path), 200)
    document = read(text_of(path), lambda line: f"{name}:{line}")
    if document.problems:
        raise BadFile([problem for _, problem in document.problems])
    values = {} if document.value is None else document.value
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = problems_of(kind, error, values)
        raise BadFile(in_file(problems, document.lines, name, values)) from error
