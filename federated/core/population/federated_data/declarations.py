"""What a site discloses of a data set: the schema of its samples, its clients, and their sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, TypeGuard

from .errors import BadDeclaration

DTYPES = ("float32", "float64", "int64")
MOST_CLIENTS = 1 << 40
"""Per site."""
MOST_CLASSES = 1 << 20
LARGEST_SAMPLE = 1 << 28
"""Numbers per sample."""
MOST_DIMENSIONS = 8
LONGEST_ID = 256
MOST_OF_A_LABEL = 1 << 32
"""Samples that a client has of one label."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Exactness(StrEnum):
    """How exactly a site's sample counts, and so its share, may be shown."""

    EXACT = "exact"
    ABOUT = "about"
    """Shares in tenths."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Schema:
    """What a sample looks like."""

    input_shape: tuple[int, ...]
    dtype: str
    num_classes: int

    def __str__(self) -> str:
        shape = list(self.input_shape)
        return f"{self.dtype} of shape {shape}, {self.num_classes} classes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a site discloses of one data set."""

    schema: Schema
    movable: bool
    clients: int
    ids: tuple[str, ...] | None = None
    """Sorted; None where the site does not disclose them."""
    counts: tuple[int, ...] | None = None
    """Samples of each client, exact or rounded by the site."""
    exact: bool = False
    labels: tuple[tuple[int, ...], ...] | None = None
    """Samples of each label, of each client: exact, rounded or noised by the site."""
    labels_noised: bool = False

    @property
    def told(self) -> Exactness:
        """How exactly its clients' samples may be shown."""
        if self.counts is None:
            return Exactness.NONE
        return Exactness.EXACT if self.exact else Exactness.ABOUT

    @classmethod
    def from_json(cls, site: str, dataset: str, values: Any) -> Declared:
        """A site's declaration; raises BadDeclaration for invalid values."""

        def fail(problem: str) -> BadDeclaration:
            return BadDeclaration(site, dataset, problem)

        if not _NAME.fullmatch(site):
            raise fail("the site's name may have letters, digits, `.`, `_` and `-`, at most 63")
        if not isinstance(values, Mapping):
            raise fail(f"wanted a section, found {values!r:.60}")
        clients, residency = values.get("clients"), values.get("residency")
        if not is_count(clients, 1, MOST_CLIENTS):
            raise fail(f"wanted a number of clients from 1 to 2^40, found {clients!r:.60}")
        if residency not in ("pinned", "movable"):
            raise fail(f"wanted `pinned` or `movable`, found {residency!r:.60}")
        ids, counts = values.get("ids"), values.get("counts")
        if ids is not None and not _are_ids(ids, clients):
            raise fail(f"wanted {clients} distinct ids of clients, sorted, found something else")
        if counts is not None and not (
            isinstance(counts, list)
            and len(counts) == clients
            and all(is_count(count, 0, 1 << 62) for count in counts)
        ):
            raise fail(f"wanted {clients} numbers of samples, found something else")
        schema, labels = _schema_in(values.get("schema"), fail), values.get("client_labels")
        if labels is not None and not _are_labels(labels, clients, schema.num_classes):
            wanted = f"{schema.num_classes} numbers of samples for each of {clients} clients"
            raise fail(f"wanted {wanted} in `client_labels`, found something else")
        return cls(
            schema=schema,
            movable=residency == "movable",
            clients=clients,
            ids=None if ids is None else tuple(ids),
            counts=None if counts is None else tuple(counts),
            exact=counts is not None and values.get("counts_are") == "exact",
            labels=None if labels is None else tuple(tuple(each) for each in labels),
            labels_noised=values.get("client_labels_are") == "noised",
        )


def is_count(value: Any, least: int, most: int) -> TypeGuard[int]:
    return type(value) is int and least <= value <= most


def _are_ids(values: Any, clients: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) == clients
        and all(isinstance(id, str) and 0 < len(id) <= LONGEST_ID for id in values)
        and all(id.isprintable() for id in values)
        and all(a < b for a, b in pairwise(values))
    )


def _are_labels(values: Any, clients: int, classes: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) == clients
        and all(isinstance(each, list) and len(each) == classes for each in values)
        and all(is_count(count, 0, MOST_OF_A_LABEL) for each in values for count in each)
    )


def _schema_in(values: Any, fail: Callable[[str], BadDeclaration]) -> Schema:
    """The schema; fails if no model or sample of its size can be made."""
    found = values if isinstance(values, Mapping) else {}
    shape, dtype, classes = (found.get(name) for name in ("input_shape", "dtype", "num_classes"))
    if not (
        isinstance(shape, list)
        and 0 < len(shape) <= MOST_DIMENSIONS
        and all(is_count(length, 1, LARGEST_SAMPLE) for length in shape)
        and math.prod(shape) <= LARGEST_SAMPLE
    ):
        raise fail(f"wanted an `input_shape` of 1 to 8 lengths, found {shape!r:.60}")
    if dtype not in DTYPES:
        raise fail(f"wanted a `dtype` among {', '.join(DTYPES)}, found {dtype!r:.60}")
    if not is_count(classes, 1, MOST_CLASSES):
        raise fail(f"wanted `num_classes` from 1 to 2^20, found {classes!r:.60}")
    return Schema(tuple(shape), dtype, classes)
