"""A site's place in the population: which clients the site has, and their names.

A client has its own id if its site discloses ids, otherwise the site's name and a number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..partitions.client_ids import ClientIds, ListedIds, PatternIds
from .declarations import is_count
from .errors import UnionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A site's part of the population, as the spec of its work states it."""

    dataset: str
    population: int
    first: int
    clients: int
    pattern: str
    """Pattern for client names where ids are not disclosed."""
    ids_digest: str = ""

    @property
    def here(self) -> range:
        """The range of its clients."""
        return range(self.first, self.first + self.clients)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any) -> Place:
        """The inverse of `to_json`; raises FederatedError for anything else."""
        fields = cls.__dataclass_fields__
        if not isinstance(values, Mapping) or set(values) != set(fields):
            raise UnionError(f"wanted a place with {', '.join(fields)}, found {values!r:.80}")
        numbers = [values[name] for name in ("population", "first", "clients")]
        texts = [values[name] for name in ("dataset", "pattern", "ids_digest")]
        population, first, clients = numbers
        if not (
            all(is_count(number, 0, 1 << 62) for number in numbers)
            and first + clients <= population
            and all(isinstance(text, str) for text in texts)
        ):
            raise UnionError(f"wanted clients of a population, found {values!r:.80}")
        return cls(**values)


def ids_of(site: str, ids: Sequence[str] | None, clients: int, pattern: str) -> ClientIds:
    """Client names at a site: their own ids, or the site and a number."""
    if ids is not None:
        return ListedIds(np.asarray(ids, dtype=np.str_))
    return PatternIds(f"{site}/{pattern}", clients)


def digest_of_ids(ids: Sequence[str]) -> str:
    """SHA-256 (hex) over ids in their order."""
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()
