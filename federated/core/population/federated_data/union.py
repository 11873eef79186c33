"""The clients of all sites that declare a data set, as one population.

Clients may move only between sites that all hold them: each declares them movable, under the same
ids. Sites that do not fit together are refused by name before anything starts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..partitions.client_ids import ClientIds
from ..partitions.partition import PartitionKind, UnknownClient
from ..partitions.summary import PartitionSummary, summary_of
from .declarations import Declared, Exactness, Schema
from .errors import UnionError
from .place import Place, digest_of_ids, ids_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientsOfPlace:
    """Clients whose samples lie at the same place."""

    sites: tuple[str, ...]
    """More than one if the clients may move between them."""
    first: int
    ids: ClientIds
    counts: tuple[int, ...] | None
    ids_digest: str
    exact: bool = False
    labels: tuple[tuple[int, ...], ...] | None = None
    labels_noised: bool = False

    @property
    def indices(self) -> range:
        """The range of its clients in the population."""
        return range(self.first, self.first + len(self.ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """The clients of all sites with a data set."""

    dataset: str
    schema: Schema
    parts: tuple[ClientsOfPlace, ...]
    pattern: str
    without_ids: tuple[str, ...]
    """Sites that do not disclose the ids of their clients."""
    digest: str
    """SHA-256 over everything that the sites disclose."""
    told: Mapping[str, Exactness]
    """By site: how exactly its clients' samples may be shown."""

    @property
    def population(self) -> int:
        """The number of clients."""
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
        """A site's part; raises UnionError if it has none."""
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
        """Samples of each client, exact or rounded; None unless all sites disclose them."""
        told = [part.counts for part in self.parts if part.counts is not None]
        if len(told) < len(self.parts):
            return None
        return np.concatenate([np.asarray(counts, dtype=np.int64) for counts in told])

    def exact_samples(self) -> NDArray[np.int64] | None:
        """Samples of each client, -1 where no site gives an exact count; None if none does."""
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

    @property
    def without_labels(self) -> tuple[str, ...]:
        """Sites that do not disclose the labels of their clients."""
        return tuple(sorted({s for part in self.parts if part.labels is None for s in part.sites}))

    @property
    def noised_labels(self) -> tuple[str, ...]:
        """Sites that add noise of their own to the labels of their clients."""
        return tuple(sorted({s for part in self.parts if part.labels_noised for s in part.sites}))

    def labels(self) -> NDArray[np.int64] | None:
        """(clients, labels): samples of each label, as disclosed; None unless all sites do."""
        told = [part.labels for part in self.parts if part.labels is not None]
        if len(told) < len(self.parts):
            return None
        return np.concatenate([np.asarray(labels, dtype=np.int64) for labels in told])


def united(dataset: str, declared: Mapping[str, Declared], *, pattern: str) -> Union:
    """Unite the clients of all sites that declare a data set; UnionError if they do not fit."""
    if not declared:
        raise UnionError(f"no site declares data set {dataset}")
    _check_alike(dataset, declared)
    names = sorted(declared)
    first = declared[names[0]]
    parts: list[ClientsOfPlace] = []
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


def described(union: Union) -> PartitionSummary:
    """The clients' sizes, as far as the sites disclose them."""
    return summary_of(PartitionKind.NATURAL, union.population, union.samples(), None)


def _part(sites: tuple[str, ...], first: int, declared: Declared, pattern: str) -> ClientsOfPlace:
    return ClientsOfPlace(
        sites=sites,
        first=first,
        ids=ids_of(sites[0], declared.ids, declared.clients, pattern),
        counts=declared.counts,
        ids_digest="" if declared.ids is None else digest_of_ids(declared.ids),
        exact=declared.exact,
        labels=declared.labels,
        labels_noised=declared.labels_noised,
    )


def _is_shared(declared: Mapping[str, Declared]) -> bool:
    """Whether all sites hold the same clients and may train them."""
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
        name: [
            *(str(each.schema), each.movable, each.clients, each.ids, each.counts),
            *([] if each.labels is None else [each.labels]),
        ]
        for name, each in declared.items()
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
