"""Decide who the clients of a run are whose data lies at sites: the union of what sites declare.

The rules it keeps:

* a site's clients are a contiguous range of the population, the sites being in the order of their
  names; within it they are in the order of their own ids, whether those are disclosed or not;
* a client is called by its own id where its site discloses ids, and by the site's name and a number
  elsewhere, so that neither its name nor its random key depends on which other sites take part;
* clients may move only between sites that all hold them: all declare them movable, by the same ids;
* sites that do not fit together are refused by name before anything is started.

What sites disclose comes over a wire: it is checked here before anything is made of it.

    UnionError
    +-- BadDeclaration   what a site discloses of a data set cannot be used
    +-- NotHere          samples were asked for that are at a site
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpilot.fabric.host.exit_codes import BAD_INPUT
from fedpilot.federated.errors import FederatedError

from ..randomness import UInt64s
from .partition import (
    ClientIds,
    Disjoint,
    Int64s,
    ListedIds,
    PartitionKind,
    PartitionSummary,
    PatternIds,
    UnknownClient,
)

DTYPES = ("float32", "float64", "int64")
MOST_CLIENTS = 1 << 40
"""Of one site."""
MOST_CLASSES = 1 << 20
LARGEST_SAMPLE = 1 << 28
"""Numbers in one sample."""
MOST_DIMENSIONS = 8
LONGEST_ID = 256
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Told(StrEnum):
    """How the samples of a site's clients may be told, and so its share of them."""

    EXACT = "exact"
    ABOUT = "about"
    """In tenths."""
    NONE = "none"


class UnionError(FederatedError):
    """What sites declare cannot be trained on together."""

    exits_with = BAD_INPUT


class BadDeclaration(UnionError):
    """What a site discloses of a data set cannot be used."""

    def __init__(self, site: str, dataset: str, problem: str) -> None:
        super().__init__(site, dataset, problem)
        self.site, self.dataset, self.problem = site, dataset, problem

    def __str__(self) -> str:
        return f"site {self.site} declares data set {self.dataset} so: {self.problem}"


class NotHere(UnionError):
    """Samples were asked for that are at another place."""

    def __init__(self, client_id: str) -> None:
        super().__init__(client_id)
        self.client_id = client_id

    def __str__(self) -> str:
        return f"the samples of client {self.client_id} are at its site, and were asked for here"


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
    """Sorted; None where the site keeps them to itself."""
    counts: tuple[int, ...] | None = None
    """Samples of each client, as far as the site tells the truth of them."""
    exact: bool = False
    """Whether it says that those are the very numbers."""

    @property
    def told(self) -> Told:
        """How the samples of its clients may be told."""
        if self.counts is None:
            return Told.NONE
        return Told.EXACT if self.exact else Told.ABOUT

    @classmethod
    def from_json(cls, site: str, dataset: str, values: Any) -> Declared:
        """What a site's word says; BadDeclaration for anything that it cannot mean."""

        def fail(problem: str) -> BadDeclaration:
            return BadDeclaration(site, dataset, problem)

        if not _NAME.fullmatch(site):
            raise fail("its own name is none: letters, digits, `.`, `_`, `-` make one, 63 at most")
        if not isinstance(values, Mapping):
            raise fail(f"wanted a section, found {values!r:.60}")
        clients, residency = values.get("clients"), values.get("residency")
        if not _is_count(clients, 1, MOST_CLIENTS):
            raise fail(f"wanted a number of clients from 1 to 2^40, found {clients!r:.60}")
        if residency not in ("pinned", "movable"):
            raise fail(f"wanted `pinned` or `movable`, found {residency!r:.60}")
        ids, counts = values.get("ids"), values.get("counts")
        if ids is not None and not _are_ids(ids, clients):
            raise fail(f"wanted {clients} distinct ids of clients, sorted, found something else")
        if counts is not None and not (
            isinstance(counts, list)
            and len(counts) == clients
            and all(_is_count(count, 0, 1 << 62) for count in counts)
        ):
            raise fail(f"wanted {clients} numbers of samples, found something else")
        return cls(
            schema=_schema_in(values.get("schema"), fail),
            movable=residency == "movable",
            clients=clients,
            ids=None if ids is None else tuple(ids),
            counts=None if counts is None else tuple(counts),
            exact=counts is not None and values.get("counts_are") == "exact",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A site's part of the population, as its spec says it."""

    dataset: str
    population: int
    first: int
    """The index of its first client."""
    clients: int
    pattern: str
    """How clients are called whose ids are not disclosed."""
    ids_digest: str = ""
    """Of the ids, if they are disclosed."""

    @property
    def here(self) -> range:
        """Its clients."""
        return range(self.first, self.first + self.clients)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {name: getattr(self, name) for name in type(self).__dataclass_fields__}

    @classmethod
    def from_json(cls, values: Any) -> Place:
        """The inverse of `to_json`; FederatedError for anything else."""
        fields = cls.__dataclass_fields__
        if not isinstance(values, Mapping) or set(values) != set(fields):
            raise UnionError(f"wanted a place with {', '.join(fields)}, found {values!r:.80}")
        numbers = [values[name] for name in ("population", "first", "clients")]
        texts = [values[name] for name in ("dataset", "pattern", "ids_digest")]
        population, first, clients = numbers
        if not (
            all(_is_count(number, 0, 1 << 62) for number in numbers)
            and first + clients <= population
            and all(isinstance(text, str) for text in texts)
        ):
            raise UnionError(f"wanted clients of a population, found {values!r:.80}")
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Clients whose samples lie at the same place."""

    sites: tuple[str, ...]
    """More than one if the clients may move between them."""
    first: int
    ids: ClientIds
    counts: tuple[int, ...] | None
    ids_digest: str
    exact: bool = False
    """Whether the counts are the very numbers."""

    @property
    def indices(self) -> range:
        """Its clients' places in the population."""
        return range(self.first, self.first + len(self.ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """Who is where."""

    dataset: str
    schema: Schema
    parts: tuple[Part, ...]
    pattern: str
    without_ids: tuple[str, ...]
    """Sites that keep the ids of their clients to themselves."""
    digest: str
    """SHA-256 over all that the sites disclose."""
    told: Mapping[str, Told]
    """By site, how the samples of its clients may be told."""

    @property
    def population(self) -> int:
        """How many clients there are."""
        return sum(len(part.ids) for part in self.parts)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that hold the data set, sorted."""
        return tuple(sorted({site for part in self.parts for site in part.sites}))

    @property
    def pinned(self) -> dict[str, list[range]]:
        """The clients that may not move, by site."""
        return {part.sites[0]: [part.indices] for part in self.parts if len(part.sites) == 1}

    def place_of(self, site: str) -> Place:
        """A site's part; UnionError if it has none."""
        for part in self.parts:
            if site in part.sites:
                return Place(
                    dataset=self.dataset,
                    population=self.population,
                    first=part.first,
                    clients=len(part.ids),
                    pattern=self.pattern,
                    ids_digest=part.ids_digest,
                )
        raise UnionError(
            f"site {site} did not declare data set {self.dataset} before the run began, so none of "
            f"its clients take part; those of {', '.join(self.sites)} do"
        )

    def samples(self) -> NDArray[np.int64] | None:
        """How many samples each client holds, as far as sites say; None unless all do."""
        told = [part.counts for part in self.parts if part.counts is not None]
        if len(told) < len(self.parts):
            return None
        return np.concatenate([np.asarray(counts, dtype=np.int64) for counts in told])

    def exact_samples(self) -> NDArray[np.int64] | None:
        """How many samples each client holds, -1 where no site says exactly; None if none does."""
        if not any(part.exact for part in self.parts):
            return None
        return np.concatenate(
            [
                np.asarray(part.counts, dtype=np.int64)
                if part.exact
                else np.full(len(part.ids), -1, dtype=np.int64)
                for part in self.parts
            ]
        )


def united(dataset: str, declared: Mapping[str, Declared], *, pattern: str) -> Union:
    """The clients of all sites that declare a data set. UnionError if they do not fit together."""
    if not declared:
        raise UnionError(f"no site declares data set {dataset}")
    _check_alike(dataset, declared)
    names = sorted(declared)
    first = declared[names[0]]
    parts: list[Part] = []
    if len(names) > 1 and _is_shared(declared):
        parts.append(_part(tuple(names), 0, first, pattern))
    else:
        _check_distinct(dataset, declared, pattern)
        begin = 0
        for name in names:
            parts.append(_part((name,), begin, declared[name], pattern))
            begin += declared[name].clients
    return Union(
        dataset=dataset,
        schema=first.schema,
        parts=tuple(parts),
        pattern=pattern,
        without_ids=tuple(name for name in names if declared[name].ids is None),
        digest=_digest(declared),
        told={name: declared[name].told for name in names},
    )


def _part(sites: tuple[str, ...], first: int, declared: Declared, pattern: str) -> Part:
    return Part(
        sites=sites,
        first=first,
        ids=ids_of(sites[0], declared.ids, declared.clients, pattern),
        counts=declared.counts,
        ids_digest="" if declared.ids is None else digest_of_ids(declared.ids),
        exact=declared.exact,
    )


def ids_of(site: str, ids: Sequence[str] | None, clients: int, pattern: str) -> ClientIds:
    """What a site's clients are called: by their own ids, or by the site and a number."""
    if ids is not None:
        return ListedIds(np.asarray(ids, dtype=np.str_))
    return PatternIds(f"{site}/{pattern}", clients)


def digest_of_ids(ids: Sequence[str]) -> str:
    """SHA-256 (hex) over ids in their order."""
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()


def _is_shared(declared: Mapping[str, Declared]) -> bool:
    """Whether all sites hold the same clients, and may train them."""
    ids = {each.ids for each in declared.values()}
    return len(ids) == 1 and None not in ids and all(each.movable for each in declared.values())


def _check_alike(dataset: str, declared: Mapping[str, Declared]) -> None:
    schemas: dict[Schema, list[str]] = {}
    for name in sorted(declared):
        schemas.setdefault(declared[name].schema, []).append(name)
    if len(schemas) > 1:
        told = "; ".join(f"{', '.join(names)}: {schema}" for schema, names in schemas.items())
        raise UnionError(
            f"data set {dataset} is not the same at all sites ({told}); one model needs samples of "
            "one kind: have the sites declare the same, or leave some out"
        )


def _check_distinct(dataset: str, declared: Mapping[str, Declared], pattern: str) -> None:
    """Refuse two clients of one name."""
    numbered = {
        name: ids_of(name, None, each.clients, pattern)
        for name, each in declared.items()
        if each.ids is None
    }
    owner: dict[str, str] = {}
    for name in sorted(declared):
        for id in declared[name].ids or ():
            other = owner.setdefault(id, name)
            if other == name:
                other = next((site for site, ids in numbered.items() if _has(ids, id)), name)
            if other != name:
                raise UnionError(
                    f"data set {dataset} has a client {id!r} at site {other} and at site {name}; "
                    "wanted different ids, ids that are not disclosed, or the same movable "
                    "clients at all sites"
                )


def _has(ids: ClientIds, id: str) -> bool:
    try:
        ids.index_of(id)
    except UnknownClient:
        return False
    return True


def _digest(declared: Mapping[str, Declared]) -> str:
    told = {
        name: [str(each.schema), each.movable, each.clients, each.ids, each.counts]
        for name, each in declared.items()
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _is_count(value: Any, least: int, most: int) -> TypeGuard[int]:
    return type(value) is int and least <= value <= most


def _are_ids(values: Any, clients: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) == clients
        and all(isinstance(id, str) and 0 < len(id) <= LONGEST_ID for id in values)
        and all(id.isprintable() for id in values)
        and all(a < b for a, b in pairwise(values))
    )


def _schema_in(values: Any, fail: Callable[[str], BadDeclaration]) -> Schema:
    """A schema that a model can be made for, of a size that can be made."""
    found = values if isinstance(values, Mapping) else {}
    shape, dtype, classes = (found.get(name) for name in ("input_shape", "dtype", "num_classes"))
    if not (
        isinstance(shape, list)
        and 0 < len(shape) <= MOST_DIMENSIONS
        and all(_is_count(length, 1, LARGEST_SAMPLE) for length in shape)
        and math.prod(shape) <= LARGEST_SAMPLE
    ):
        raise fail(f"wanted an `input_shape` of 1 to 8 lengths, found {shape!r:.60}")
    if dtype not in DTYPES:
        raise fail(f"wanted a `dtype` among {', '.join(DTYPES)}, found {dtype!r:.60}")
    if not _is_count(classes, 1, MOST_CLASSES):
        raise fail(f"wanted `num_classes` from 1 to 2^20, found {classes!r:.60}")
    return Schema(tuple(shape), dtype, classes)


def described(union: Union) -> PartitionSummary:
    """What is known of how the samples lie on the clients."""
    samples = union.samples()
    return PartitionSummary(
        kind=PartitionKind.NATURAL,
        number_of_clients=union.population,
        samples_min=None if samples is None else int(samples.min()),
        samples_median=None if samples is None else float(np.median(samples)),
        samples_max=None if samples is None else int(samples.max()),
        labels_mean=None,
    )


# -- partitions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A site's part of the population: the partition whose other clients are elsewhere."""

    first: int
    population: int
    own: Disjoint
    """Its clients, from 0 on, by the names that they have in the population."""

    @property
    def kind(self) -> PartitionKind:
        return PartitionKind.NATURAL

    @property
    def number_of_clients(self) -> int:
        return self.population

    @property
    def here(self) -> range:
        """The clients whose samples are here."""
        return range(self.first, self.first + self.own.number_of_clients)

    def client_id(self, index: int) -> str:
        return self.own.client_id(self._own_index(index))

    def index_of(self, client_id: str) -> int:
        return self.first + self.own.index_of(client_id)

    def indices(self, index: int) -> Int64s:
        return self.own.indices(self._own_index(index))

    def size(self, index: int) -> int:
        return self.own.size(self._own_index(index))

    def sizes(self, indices: ArrayLike) -> Int64s:
        return self.own.sizes(self._own_indices(indices))

    def rows(self, indices: ArrayLike, keys: UInt64s | None = None) -> tuple[Int64s, Int64s]:
        return self.own.rows(self._own_indices(indices), keys)

    def keys(self, indices: ArrayLike) -> UInt64s:
        return self.own.keys(self._own_indices(indices))

    def _own_index(self, index: int) -> int:
        if index not in self.here:
            raise NotHere(f"number {index}")
        return index - self.first

    def _own_indices(self, indices: ArrayLike) -> Int64s:
        clients = np.asarray(indices, dtype=np.int64)
        outside = (clients < self.first) | (clients >= self.here.stop)
        if outside.any():
            raise NotHere(f"number {int(clients[outside][0])}")
        return clients - self.first


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """The partition of a union as whoever holds no samples sees it: ids, and nothing else."""

    union: Union

    @property
    def kind(self) -> PartitionKind:
        return PartitionKind.NATURAL

    @cached_property
    def number_of_clients(self) -> int:
        return self.union.population

    def client_id(self, index: int) -> str:
        part = self._part_of(index)
        return part.ids.id_of(index - part.first)

    def index_of(self, client_id: str) -> int:
        for part in self.union.parts:
            if _has(part.ids, client_id):
                return part.first + part.ids.index_of(client_id)
        last = self.number_of_clients - 1
        raise UnknownClient(client_id, f"{self.client_id(0)} to {self.client_id(last)}")

    def indices(self, index: int) -> Int64s:
        raise NotHere(self.client_id(index))

    def size(self, index: int) -> int:
        raise NotHere(self.client_id(index))

    def sizes(self, indices: ArrayLike) -> Int64s:
        raise NotHere(self._one_of(indices))

    def rows(self, indices: ArrayLike, keys: UInt64s | None = None) -> tuple[Int64s, Int64s]:
        raise NotHere(self._one_of(indices))

    def keys(self, indices: ArrayLike) -> UInt64s:
        raise NotHere(self._one_of(indices))

    def _part_of(self, index: int) -> Part:
        for part in self.union.parts:
            if index in part.indices:
                return part
        raise IndexError(
            f"clients are numbered from 0 to {self.number_of_clients - 1}, not {index}"
        )

    def _one_of(self, indices: ArrayLike) -> str:
        clients = np.asarray(indices, dtype=np.int64).tolist()
        return self.client_id(clients[0]) if clients else "nobody"
